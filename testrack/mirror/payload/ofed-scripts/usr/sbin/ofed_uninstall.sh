#!/bin/sh
# Fake: removes the fake packages of this OFED; asks first, unless told --force.
if [ "$1" != --force ]; then
  printf '\nThis program will uninstall all OFED packages on your machine.\n\nDo you want to continue?[y/N]:'
  read -r answer
  case "$answer" in y | Y | yes) ;; *) exit 1 ;; esac
fi
/etc/init.d/openibd stop || exit 1
packages=$(dpkg-query --show --showformat '${Package} ${Version} ${Description}\n' | grep '(fake)' |
  grep -E 'OFED|mlnx|doca' | cut -d' ' -f1)
export DEBIAN_FRONTEND=noninteractive
# One word each.
# shellcheck disable=SC2086
dpkg --purge --force-depends $packages && echo "Uninstall finished successfully"
