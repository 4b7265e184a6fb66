#!/bin/bash
# Makes the source package under /tmp, as the real script does.
set -e
cd "$(dirname "$0")"
version=$(sed -n 's/^VERSION=//p' version)
name=nvidia-peer-memory-$version
work=$(mktemp -d /tmp/build_module.XXXXXX)
trap 'rm -rf "$work"' EXIT

echo
echo "Building debian tarball for nvidia-peer-memory..."
mkdir "$work/$name"
cp -a Makefile README.md build_module.sh debian dkms.conf nv_peer_mem.c nv_peer_mem.conf nv_peer_mem.json \
  version "$work/$name/"
tar -C "$work" -czf "/tmp/nvidia-peer-memory_$version.orig.tar.gz" "$name"

echo
echo "Built: /tmp/nvidia-peer-memory_$version.orig.tar.gz"
echo
echo "To install on DEB based OS:"
echo "    # cd /tmp"
echo "    # tar xzf /tmp/nvidia-peer-memory_$version.orig.tar.gz"
echo "    # cd $name"
echo "    # dpkg-buildpackage -us -uc"
echo "    # dpkg -i <path to generated deb files>"
