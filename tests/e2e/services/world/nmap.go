package world

import (
	"regexp"
	"slices"
	"testing"
	"time"
)

// scans is the number of nmap runs on a bad wire, where nmap reports a port with a late answer as
// closed.
const scans = 5

// banner is longer than nmap waits for data that a server sends unasked or in answer to a probe: 5
// to 7.5 s, totalwaitms of nmap-service-probes.
const banner = 15 * time.Second

// Nmap runs nmap's service detection on ports of the server, written as "80,443". All patterns must
// match its output.
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
