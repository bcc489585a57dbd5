package rig

import (
	"regexp"
	"strconv"
	"strings"
)

// literalPrefix is the part of a regular expression before its first special character.
func literalPrefix(pattern string) string {
	if i := strings.IndexAny(pattern, `\.+*?[(|^$`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

var digitRuns = regexp.MustCompile(`\d+|\D+`)

// naturalLess orders names so that runs of digits compare as numbers: 6.1.0-9 comes before
// 6.1.0-56.
func naturalLess(a, b string) bool {
	x, y := digitRuns.FindAllString(a, -1), digitRuns.FindAllString(b, -1)
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] == y[i] {
			continue
		}
		m, err1 := strconv.Atoi(x[i])
		n, err2 := strconv.Atoi(y[i])
		if err1 == nil && err2 == nil && m != n {
			return m < n
		}
		return x[i] < y[i]
	}
	return len(x) < len(y)
}

// lastLines returns the last n lines of a program's output, on one line.
func lastLines(b []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, " | ")
}
