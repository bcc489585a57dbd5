package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// report is the output of a wrk script: wrk's own summary has no p99.9.
const report = `done = function(s, latency, r)
  io.write(string.format('{"requests":%d,"micros":%d,"errors":%d,"p50":%d,"p99":%d,"p999":%d}\n', s.requests, s.duration,
    s.errors.connect + s.errors.read + s.errors.write + s.errors.status + s.errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
`

const zoneText = `$ORIGIN example.
@ 3600 IN SOA ns hostmaster 1 3600 900 604800 300
@ 3600 IN NS ns
ns 3600 IN A 192.0.2.10
www 3600 IN A 192.0.2.80
`

// files are the files that the programs and the DNS server read.
type files struct{ script, queries, zone string }

func writeFiles(dir string) (f files, err error) {
	for _, w := range []struct {
		at         *string
		name, text string
	}{{&f.script, "report.lua", report}, {&f.queries, "queries", "www.example A\n"},
		{&f.zone, "example.zone", zoneText}} {
		*w.at = filepath.Join(dir, w.name)
		if err := os.WriteFile(*w.at, []byte(w.text), 0o644); err != nil {
			return f, err
		}
	}
	return f, nil
}

// program runs a program in a namespace and returns its output.
func program(ctx context.Context, at *lab.Net, name string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := at.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// wrk requests a page on conns connections for whole seconds. It checks no certificate.
func wrk(ctx context.Context, at *lab.Net, script, url string, seconds, conns int,
	headers ...string) (metrics, error) {
	args := []string{"-t1", "-c" + strconv.Itoa(conns), fmt.Sprintf("-d%ds", seconds),
		"--timeout", "2s", "-s", script}
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	out, err := program(ctx, at, "wrk", append(args, url)...)
	if err != nil {
		return nil, err
	}
	return parseWrk(out)
}

func parseWrk(out string) (metrics, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var m metrics
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &m); err != nil {
		return nil, fmt.Errorf("wrk printed %q: %w", out, err)
	}
	m["rate"] = m["requests"] / m["micros"] * 1e6
	return m, nil
}

// dnsperf keeps 100 queries in flight.
func dnsperf(ctx context.Context, at *lab.Net, queries string, seconds int) (metrics, error) {
	out, err := program(ctx, at, "dnsperf", "-s", serverPrefix.Addr().String(), "-d", queries, "-l",
		strconv.Itoa(seconds), "-c", "4", "-q", "100", "-t", "1")
	if err != nil {
		return nil, err
	}
	return parse(out, map[string]*regexp.Regexp{
		"sent":    regexp.MustCompile(`Queries sent:\s+(\d+)`),
		"lost":    regexp.MustCompile(`Queries lost:\s+(\d+)`),
		"rate":    regexp.MustCompile(`Queries per second:\s+([\d.]+)`),
		"latency": regexp.MustCompile(`Average Latency \(s\):\s+([\d.]+)`),
	})
}

// ping sends count echo requests, each when the previous one is answered.
func ping(ctx context.Context, at *lab.Net, count int) (metrics, error) {
	out, err := program(ctx, at, "ping", "-q", "-f", "-c", strconv.Itoa(count), "-w", "3",
		serverPrefix.Addr().String())
	if err != nil {
		return nil, err
	}
	return parse(out, map[string]*regexp.Regexp{
		"avg":      regexp.MustCompile(`rtt min/avg/max/mdev = [\d.]+/([\d.]+)/`),
		"max":      regexp.MustCompile(`rtt min/avg/max/mdev = [\d.]+/[\d.]+/([\d.]+)/`),
		"received": regexp.MustCompile(`(\d+) received`),
	})
}

// parse extracts numbers from a program's output.
func parse(out string, fields map[string]*regexp.Regexp) (metrics, error) {
	m := metrics{}
	for name, re := range fields {
		found := re.FindStringSubmatch(out)
		if found == nil {
			return nil, fmt.Errorf("no %q in %q", re, out)
		}
		v, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return nil, err
		}
		m[name] = v
	}
	return m, nil
}
