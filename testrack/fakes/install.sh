#!/bin/sh
# Put the fakes into the root file system of a node image: install.sh DEST_ROOT
set -eu
root=${1:?usage: install.sh DEST_ROOT}
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$root/opt/rack/rackhardware" "$root/usr/local/sbin" "$root/var/lib/rack" "$root/usr/lib/rack/modules" \
  "$root/etc/systemd/system/sysinit.target.wants" "$root/etc/systemd/system/multi-user.target.wants"
cp "$here/hardware" "$here/README.md" "$root/opt/rack/"
cp "$here"/rackhardware/*.py "$root/opt/rack/rackhardware/"
chmod 755 "$root/opt/rack/hardware"

# The hardware is there without any package, so is what shows it; the kernel's tools are not ours to load modules with.
for tool in lspci dmidecode lsmod modprobe rmmod modinfo dmesg journalctl; do
  ln -sfn /opt/rack/hardware "$root/usr/local/sbin/$tool"
done

mkdir -p "$root/etc/apt/apt.conf.d"
cp "$here/apt-hook.conf" "$root/etc/apt/apt.conf.d/99-rack-hardware"
cp "$here/rack-hardware.service" "$root/etc/systemd/system/rack-hardware.service"
ln -sfn ../rack-hardware.service "$root/etc/systemd/system/sysinit.target.wants/rack-hardware.service"
cp "$here/rack-settling.service" "$root/etc/systemd/system/rack-settling.service"
ln -sfn ../rack-settling.service "$root/etc/systemd/system/multi-user.target.wants/rack-settling.service"
# This unit reads the same files as systemd's own, and loads the modules into the fake.
cp "$here/systemd-modules-load.service" "$root/etc/systemd/system/systemd-modules-load.service"
ln -sfn ../systemd-modules-load.service "$root/etc/systemd/system/sysinit.target.wants/systemd-modules-load.service"
