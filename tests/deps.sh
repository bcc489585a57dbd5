#!/bin/bash
# Installs what the tests use and this machine lacks, where that is a matter of
# apt and the user is root. Elsewhere it says in one line what is missing, and
# the tests that need it are skipped with that reason. With the argument perf it
# also looks for what "make bench-peers" uses, with services for the clients of
# "make test-services", with attacks for those of "make test-attacks", with users for
# what "make test-vm-users" builds and runs, with instructions for "make instructions", with
# browser for "make test-browser", with deploy for "make test-deploy".
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

# lacks prints the Debian package of each program and header that is not there.
lacks() {
	programs "$1" | while read -r package probe; do
		case $probe in
		/*) [ -e "$probe" ] ;;
		*.h) [ -e "/usr/include/$probe" ] || ls /usr/include/*/"$probe" >/dev/null 2>&1 ;;
		*) command -v "$probe" >/dev/null ;;
		esac || echo "$package"
	done
}

# programs lists Debian packages with a program or header of each.
programs() {
	cat <<-END
		gcc gcc
		libc6-dev stdlib.h
		linux-libc-dev rdma/mlx5-abi.h
		libibverbs-dev infiniband/mlx5dv.h
		iproute2 ip
		ethtool ethtool
		iputils-ping ping
		bind9-dnsutils dig
		dnsmasq-base dnsmasq
		nftables nft
		udhcpc udhcpc
		curl curl
		prometheus promtool
		tcpdump tcpdump
		tshark tshark
		systemd systemd-analyze
		zsh zsh
		bash-completion /usr/share/bash-completion/bash_completion
		fish fish
		mandoc mandoc
	END
	[ "$1" != perf ] || cat <<-END
		wrk wrk
		dnsperf dnsperf
	END
	[ "$1" != attacks ] || cat <<-END
		iperf3 iperf3
	END
	[ "$1" != instructions ] || cat <<-END
		valgrind valgrind
	END
	[ "$1" != deploy ] || cat <<-END
		buildah buildah
		libcap2-bin setcap
	END
	[ "$1" != browser ] || cat <<-END
		chromium chromium
	END
	[ "$1" != users ] || cat <<-END
		iperf3 iperf3
		make make
		flex flex
		bison bison
		dpkg-dev dpkg-source
	END
	[ "$1" != services ] || cat <<-END
		nghttp2-client h2load
		wrk wrk
		openssl openssl
		knot-dnsutils kdig
		dnsperf dnsperf
		nmap nmap
		openssh-client ssh
		prometheus prometheus
		bird2 bird
		frr vtysh
	END
}

for=${1-tests}

mapfile -t missing < <(lacks "$for")
[ ${#missing[@]} -gt 0 ] || exit 0

# install tries with the package lists there are, then with fresh ones.
install() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -qq -y --no-install-recommends "$@" ||
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends "$@"; }
} >/dev/null 2>&1

if [ "$(id -u)" != 0 ]; then
	why="run as root"
elif ! command -v apt-get >/dev/null; then
	why="there is no apt-get"
else
	echo "deps: installing ${missing[*]}"
	install "${missing[@]}"
	why="apt-get failed"
	mapfile -t missing < <(lacks "$for")
	[ ${#missing[@]} -gt 0 ] || exit 0
fi
echo "deps: missing ${missing[*]} ($why): tests that need them are skipped"
