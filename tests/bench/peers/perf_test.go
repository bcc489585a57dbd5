package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

func TestParsePrograms(t *testing.T) {
	wrk, err := parseWrk("Running 2s test\n  1 threads\n" +
		`{"requests":3000,"micros":1500000,"errors":2,"p50":10,"p99":90,"p999":400}` + "\n")
	if err != nil || wrk["rate"] != 2000 || wrk["p999"] != 400 || wrk["errors"] != 2 {
		t.Errorf("wrk: %v, %v", wrk, err)
	}
	if _, err := parseWrk("unable to connect\n"); err == nil {
		t.Error("wrk without a summary: no error")
	}
	fields := map[string]*regexp.Regexp{"lost": regexp.MustCompile(`lost:\s+(\d+)`)}
	if m, err := parse("  Queries lost:         17 (0.1%)\n", fields); err != nil ||
		m["lost"] != 17 {
		t.Errorf("dnsperf: %v, %v", m, err)
	}
	if _, err := parse("nothing", fields); err == nil {
		t.Error("missing field: no error")
	}
}

func TestSpreadAndRatio(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   spread
	}{
		{"one", []float64{3}, spread{3, 3, 3}},
		{"odd", []float64{5, 1, 3}, spread{3, 1, 5}},
		{"even", []float64{4, 1, 3, 2}, spread{2.5, 1, 4}},
	} {
		if got, ok := spreadOf(tt.values); !ok || got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if _, ok := spreadOf(nil); ok {
		t.Error("spread of nothing")
	}
	a := &column{Samples: map[string][]float64{"x": {10, 40, 90}}}
	b := &column{Samples: map[string][]float64{"x": {10, 20, 30}}} // a noisy round affects both
	if r, ok := ratio(a, b, "x"); !ok || r.median != 2 || r.low != 1 || r.high != 3 {
		t.Errorf("ratio %v", r)
	}
	if _, ok := ratio(a, b, "y"); ok {
		t.Error("ratio of nothing")
	}
}

func TestRatioMarksWhoIsBetter(t *testing.T) {
	for _, tt := range []struct {
		ratio float64
		less  bool
		want  string
	}{{2, false, "2.00 +"}, {0.5, false, "0.50 -"}, {2, true, "2.00 -"},
		{0.5, true, "0.50 +"}, {1, true, "1.00"}} {
		if got := ratioCell(spread{median: tt.ratio}, true, tt.less); got != tt.want {
			t.Errorf("%v, less is better %v: %q, want %q", tt.ratio, tt.less, got, tt.want)
		}
	}
}

func TestModelShare(t *testing.T) {
	var lines []*profile.Function
	sample := func(n int64, stack ...string) *profile.Sample {
		s := &profile.Sample{Value: []int64{n, n * 10e6}}
		for _, name := range stack {
			f := &profile.Function{ID: uint64(len(lines) + 1), Name: name}
			lines = append(lines, f)
			s.Location = append(s.Location,
				&profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}})
		}
		return s
	}
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"},
		{Type: "cpu", Unit: "nanoseconds"}}}
	p.Sample = []*profile.Sample{
		sample(3, "syscall.write", modelPath+"(*fdWire).send", "dv.(*TxQueue).Flush"),
		sample(1, "dv.(*RxQueue).Poll"),
	}
	for _, s := range p.Sample {
		p.Location = append(p.Location, s.Location...)
	}
	p.Function = lines
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	share, samples, err := shareOf(b.Bytes(), modelPath)
	if err != nil || math.Abs(share-0.75) > 1e-9 || samples != 4 {
		t.Errorf("share %v of %v samples, %v", share, samples, err)
	}
	// all but a fifth, where the server's kernel works
	for relays, want := range map[bool]float64{false: 0.75, true: 0.8} {
		m := meter{relays: relays}
		p.Sample = append(p.Sample[:2:2], sample(1, "unix.Write", relayServer, "main.carry"))
		if !relays {
			p.Sample = p.Sample[:2]
		}
		p.Location, p.Function = nil, lines
		for _, s := range p.Sample {
			p.Location = append(p.Location, s.Location...)
		}
		if err := p.Write(&m.profile); err != nil {
			t.Fatal(err)
		}
		if share, _, err := m.modelShare(); err != nil || math.Abs(share-want) > 1e-9 {
			t.Errorf("relays %v: share %v, %v", relays, share, err)
		}
	}
}

func TestPeersAndCatalogueAreConsistent(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range peers() {
		if seen[p.Name] {
			t.Errorf("%s is there twice", p.Name)
		}
		seen[p.Name] = true
		if _, ok := dispatchModes[p.End.Dispatch]; p.End.Link == linkFD && !ok {
			t.Errorf("%s: no dispatch mode %q", p.Name, p.End.Dispatch)
		}
	}
	for name := range manyPeers {
		if !seen[name] {
			t.Errorf("no peer %s for many connections", name)
		}
	}
	for name := range servicePeers {
		if !seen[name] {
			t.Errorf("no peer %s for whole services", name)
		}
	}
	keys := map[string]bool{}
	for _, q := range catalogue() {
		if keys[q.Key] {
			t.Errorf("%s is there twice", q.Key)
		}
		keys[q.Key] = true
	}
	for _, key := range slices.Concat(shortKeys, shortServiceKeys, shortWANKeys,
		shortApartKeys, shortPacketKeys,
		shortMemoryKeys) {
		if !keys[key] {
			t.Errorf("no quantity %s for the short tables", key)
		}
	}
	for _, a := range aims() {
		if !keys[a.key] || !seen[a.us] {
			t.Errorf("aim %q: no quantity %s or no peer %s", a.what, a.key, a.us)
		}
	}
}

func TestLongCableHasItsOwnLoads(t *testing.T) {
	for _, p := range peers() {
		for _, b := range benches() {
			if wan := strings.HasPrefix(b.name, "wan-"); b.for_(p) && wan != p.wan() {
				t.Errorf("%s runs on %s", b.name, p.Name)
			}
		}
	}
}

func TestServicesTakeFewRounds(t *testing.T) {
	some, other := &peer{Name: "ours/tap"}, &peer{Name: "ours/tap", Extra: true}
	for _, b := range serviceBenches() {
		if !b.takes(some, extraRounds-1) && !b.takes(&peer{Name: "packet",
			End: packetEnd()}, extraRounds-1) {
			t.Errorf("%s: not in the first rounds", b.name)
		}
		if b.takes(some, extraRounds) || b.takes(other, 0) || b.takes(&peer{Name: "mem-ours"}, 0) {
			t.Errorf("%s: in a late round, or on a peer that has no services measured", b.name)
		}
	}
}

func TestChartIsXML(t *testing.T) {
	r := newResults(flags{})
	r.Peers = []*column{
		{Name: "kernel/<veth>", Samples: map[string][]float64{"http": {1, 2, 3}}},
		{Name: "ours", Samples: map[string][]float64{"http": {4}}, Ours: true},
	}
	svg := chart(r)
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(svg, "<rect class=") != 3 { // the background and two bars
		t.Errorf("chart has no two bars:\n%s", svg)
	}
}

func TestFlags(t *testing.T) {
	if f, err := parseFlags([]string{"-quick"}, io.Discard); err != nil ||
		!f.quick || f.rounds != 3 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := parseFlags([]string{"-only", "("}, io.Discard); err == nil {
		t.Error("a broken expression: no error")
	}
	if _, err := parseFlags([]string{"-h"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}

// TestPairs opens both ends in this process and runs every load that works without a kernel.
func TestPairs(t *testing.T) {
	files, err := writeFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []end{
		{Stack: stackGvisor, Link: linkPipe}, {Stack: stackGvisor, Link: linkInline},
		{Stack: stackOurs, Link: linkSim, Queues: 1},
		{Stack: stackOurs, Link: linkSim, Queues: 2, Carry: true},
	} {
		t.Run(e.Link, func(t *testing.T) {
			server, client, err := openPair(e)
			if err != nil {
				t.Fatal(err)
			}
			if err := startBehind(client); err != nil {
				t.Fatal(err)
			}
			s, err := startServices(server, files.zone)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range []load{
				{Kind: "up", Flows: 2}, {Kind: "down", Flows: 2}, {Kind: "http", Flows: 3},
				{Kind: "pieces", Flows: 2, Size: 64 << 10}, {Kind: "pieces", Flows: 1},
				{Kind: "paced", Flows: 3, Rate: 1000},
				{Kind: "rtt"}, {Kind: "udp up", Size: 64}, {Kind: "udp down", Size: 64},
				{Kind: "udp echo", Size: 64, Flows: 2},
				{Kind: "idle", Flows: 100},
				{Kind: "up", Flows: 2, TLS: true}, {Kind: "down", Flows: 2, TLS: true},
				{Kind: "http2", Flows: 16}, {Kind: "http", Flows: 3, Port: portFast},
				{Kind: "http", Flows: 3, Port: portProxy},
				{Kind: "http3", Flows: 16, Port: portHTTP3},
				{Kind: "http3", Flows: 16, Port: portBatched},
				{Kind: "http3 up", Flows: 1, Port: portHTTP3},
				{Kind: "http3 down", Flows: 1, Port: portHTTP3},
				{Kind: "http3 up", Flows: 1, Port: portBatched},
				{Kind: "http3 down", Flows: 1, Port: portBatched},
				{Kind: "grpc", Flows: 16}, {Kind: "grpc pull", Flows: 2},
				{Kind: "udp echo", Size: 64, Flows: 32, Port: portMany}, {Kind: "many"},
				{Kind: "sfu", Size: 1000, Flows: 20, Rate: 2000, Port: portSFU},
				{Kind: "sfu", Size: 1000, Flows: 20, Rate: 2000, Port: portSFUBatched},
			} {
				if err := runs(l, client); err != nil {
					t.Errorf("%s: %v", l.Kind, err)
				}
			}
			if got := s.snapshot(); got.received == 0 || got.datagrams == 0 || got.sent == 0 {
				t.Errorf("the server counted %+v", got)
			}
		})
	}
}

// runs runs a load for a moment, and longer on a machine too slow for anything to arrive in that
// time.
func runs(l load, h host) (err error) {
	for l.Seconds = 0.05; l.Seconds < 10; l.Seconds *= 10 {
		var m metrics
		if m, err = l.run(h); err == nil {
			err = achieved(m)
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// achieved checks that every count is above zero.
func achieved(m metrics) error {
	for _, name := range []string{"rate", "bytes", "requests", "connections"} {
		if v, ok := m[name]; ok && v == 0 {
			return fmt.Errorf("%s is 0", name)
		}
	}
	return nil
}
