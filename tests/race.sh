#!/bin/sh
# Prints "-race" where go test can have the race detector. Elsewhere it prints nothing, and on standard error, in a frame, that
# there is none and why. With the argument "again" it repeats only that, at the end of a long output.
why=$(go test -race -c -o /dev/null ./tests/lib/need 2>&1) && {
	[ "${1-}" = again ] || echo -race
	exit 0
}
line='########################################################################'
cat >&2 <<END
$line
# THE TESTS RUN WITHOUT THE RACE DETECTOR: data races go unnoticed.
$(printf '%s\n' "$why" | sed 's/^/#   /')
# It needs a C compiler (apt-get install gcc libc6-dev) and cgo (CGO_ENABLED=1).
$line
END
