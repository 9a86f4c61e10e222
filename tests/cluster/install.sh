#!/bin/sh
# Installs what the Slurm tests need (Debian, Ubuntu), if this user may: sh tests/cluster/install.sh
set -eu
PATH=$PATH:/usr/sbin:/sbin
packages="slurm-wlm munge slurmdbd slurm-wlm-mysql-plugin mariadb-server"
skip() {
    echo "Slurm tests will be skipped: $1"
    exit 0
}

command -v dpkg-query > /dev/null && command -v apt-get > /dev/null || skip "no apt-get here to install $packages"
missing=
for package in $packages; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] || skip "root must install$missing"

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # one word a package
apt-get install -q -y --no-install-recommends $packages
