#!/usr/bin/env bash
# fetch.sh [uml | cloud | next]...: fetches kernels into target/guest, all if none is named, from the sources of packages of
# this machine, the last from the backports of Debian 13. Nothing is installed: QEMU's packages may not stand beside those of
# its tools that come from elsewhere.
set -euo pipefail
exec 2>&1
cd "$(dirname "$0")/../.."
mkdir -p target/guest
cd target/guest

# The newest of Debian's kernels for virtual machines; a package without a full version depends on one of the others.
newest_cloud() { # OPTIONS OF APT...
    apt-cache "$@" search --names-only '^linux-image-[0-9]+\.[0-9]+\.[0-9].*-cloud-amd64$' | cut -d' ' -f1 | sort -V | tail -1
}

# The backports of the next Debian, by this machine's source of Debian. Their lists are apart from those of this machine.
backports() {
    local source
    source=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -1)
    [ -n "$source" ] || { echo "this machine has no source of Debian's packages"; exit 1; }
    mkdir -p "$PWD/lists/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $source trixie-backports main" >backports.list
    other=(-o "Dir::Etc::sourcelist=$PWD/backports.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$PWD/lists"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
    apt-get "${other[@]}" update -qq
}

# QEMU with the libraries that are missing; empty where it is installed.
qemu() {
    apt-get install -s --no-install-recommends qemu-system-x86 | awk '$1 == "Inst" { print $2 }'
}

unpack() { # FOLDER PACKAGE..., and OPTIONS OF APT
    local folder=$1 got file
    shift
    got=$(mktemp -d)
    (cd "$got" && apt-get download -qq -o APT::Sandbox::User=root "$@")
    for file in "$got"/*.deb; do dpkg-deb -x "$file" "$folder"; done
    rm -r "$got"
}

for kernel in ${*:-uml cloud next}; do
    [ -e "$kernel" ] && continue
    rm -rf "$kernel.part"
    case $kernel in
    uml) unpack uml.part user-mode-linux ;;
    cloud)
        image=$(newest_cloud)
        [ -n "$image" ] || { echo "there is no package linux-image-*-cloud-amd64"; exit 1; }
        emulator=$(qemu)
        # shellcheck disable=SC2086 # a list of names
        unpack cloud.part "$image" $emulator
        /sbin/depmod -b cloud.part "${image#linux-image-}"
        ;;
    next)
        backports
        image=$(newest_cloud "${other[@]}")
        [ -n "$image" ] || { echo "there is no package linux-image-*-cloud-amd64"; exit 1; }
        version=${image#linux-image-}
        unpack next.part "${other[@]}" "linux-base-$version" "linux-binary-$version" "linux-modules-$version"
        emulator=$(qemu)
        # shellcheck disable=SC2086 # a list of names
        [ -z "$emulator" ] || unpack next.part $emulator
        # Where Debian 12 has them.
        mkdir -p next.part/lib
        ln -s ../usr/lib/modules next.part/lib/modules
        ln -s "lib/modules/$version" next.part/boot
        /sbin/depmod -b next.part "$version"
        ;;
    *) echo "$kernel; accepted: uml, cloud, next"; exit 1 ;;
    esac
    mv "$kernel.part" "$kernel"
done
