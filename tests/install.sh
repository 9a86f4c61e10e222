#!/bin/sh
# Installs programs that some tests need and pip does not have (Debian, Ubuntu), if this user may: sh tests/install.sh
# Without them these tests are skipped, each with its reason.
set -eu
PATH=$PATH:/usr/sbin:/sbin

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]
}

# install TESTS PACKAGE...
install() {
    tests=$1
    shift
    missing=
    for package in "$@"; do
        installed "$package" || missing="$missing $package"
    done
    if [ -z "$missing" ]; then
        return
    elif [ "$(id -u)" != 0 ]; then
        echo "$tests tests will be skipped: root must install$missing"
    else
        # shellcheck disable=SC2086 # one word a package
        { apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } ||
            echo "$tests tests will be skipped: apt-get could not install$missing"
    fi
}

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    echo "Slurm and browser tests will be skipped: no apt-get here"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install Slurm slurm-wlm munge slurmdbd slurm-wlm-mysql-plugin mariadb-server
# Any Chromium will do. Ubuntu's package of that name needs snapd, which a container has not.
if ! command -v chromium > /dev/null && ! command -v google-chrome > /dev/null; then
    install Browser chromium
fi
