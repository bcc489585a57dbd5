package world

import (
	"regexp"
	"slices"
	"testing"
	"time"
)

// scans is how often nmap may look on a bad wire, where it takes what is late for absent.
const scans = 5

// banner is longer than nmap waits, in silence, for what a server says unasked or to a probe: 5 to
// 7.5 s, totalwaitms of nmap-service-probes.
const banner = 15 * time.Second

// Nmap has nmap tell what is behind ports of the server, written as "80,443". All patterns must
// match what it prints.
func (w *World) Nmap(t testing.TB, ports string, patterns ...string) {
	t.Helper()
	Tool(t, "nmap", `Nmap version ([\d.]+)`, "--version")
	out := ""
	found := func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(out) }
	for scan := 0; scan == 0 || w.Wire != "" && scan < scans; scan++ {
		var err error
		out, err = w.try(t, banner, nil, "nmap", "-n", "-Pn", "-sT", "-sV", "--min-rtt-timeout",
			"4s", "-p", ports, Server4)
		if err != nil {
			t.Fatalf("%v\n%s", err, tail(out))
		}
		if !slices.ContainsFunc(patterns, func(p string) bool { return !found(p) }) {
			return
		}
	}
	for _, p := range patterns {
		Want(t, out, p)
	}
}
