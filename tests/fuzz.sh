#!/bin/bash
# Runs every fuzz target of the module: fuzz.sh TIME [PARSERTIME TOTAL]
#   TIME        for each target, such as 3s
#   PARSERTIME  for those that read what strangers send or users write: leases, router
#               advertisements, zones, parameters of iperf3, addresses, received segments
#   TOTAL       seconds after which no further target is begun; those are named
set -u
cd "$(dirname "$0")/.."
each=${1:?fuzz.sh TIME [PARSERTIME TOTAL]}
parser=${2:-$each} total=${3:-0}
parsers='Lease|RouterAdvert|ParseAddress|ResolvConf|Zone|Answer|Params|Receive|ACK|Resend'
status=0
targets=$(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' |
	awk -v p="Fuzz.*($parsers)" '{print ($2 ~ p ? 0 : 1), $0}' | sort)
while read -r other dir name; do
	time=$parser
	[ "$other" = 0 ] || time=$each
	if [ "$total" != 0 ] && [ $SECONDS -ge "$total" ]; then
		echo "$dir $name: not run, $total s are over"
		continue
	fi
	echo "$dir $name, $time"
	(cd "$dir" && go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 1s .) || status=1
done <<<"$targets"
exit $status
