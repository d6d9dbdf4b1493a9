#!/usr/bin/env bash
# Fetches the kernel of user-mode Linux into target/guest, from the sources of packages of this machine.
set -euo pipefail
exec 2>&1
cd "$(dirname "$0")/../.."
mkdir -p target/guest
cd target/guest
[ -e uml/usr/bin/linux.uml ] && exit 0
rm -rf uml user-mode-linux*.deb
apt-get download -qq user-mode-linux
dpkg-deb -x user-mode-linux*.deb uml
rm user-mode-linux*.deb
