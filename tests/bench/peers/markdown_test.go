package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestShortNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.123: "0.12", 9.99: "9.99", 9.996: "10.0", 12.34: "12.3", 99.96: "100",
		123.4: "123", 9994: "9994", 9996: "10.0k", 54321: "54.3k", 2345678: "2.35M",
	} {
		if got := short(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

// someResults are of one round in which gVisor's second link is the best of its links, and ours is
// better in some quantities and worse in others.
func someResults() *results {
	r := &results{Rounds: 1}
	for _, p := range peers() {
		r.add(p)
	}
	for name, v := range map[string]map[string]float64{
		"kernel/tap": {"http": 50000, "http own": 12, "dns": 100000, "paced p99": 4000},
		"fd":         {"http": 10000, "http own": 50}, "fd-gso": {"http": 20000,
			"http own": 30, "up 1": 1000},
		"ours/tap": {"http": 50000, "http own": 15, "dns": 90000, "dns lost": 0,
			"idle": 0.3, "paced p99": 3000},
		"packet":   {"http": 21000, "up 1": 740},
		"mem-ours": {"up 1": 3600, "mem http": 40000},
	} {
		for key, x := range v {
			r.column(name).Samples[key] = []float64{x}
		}
	}
	return r
}

func TestMarkdown(t *testing.T) {
	out := someResults().markdown()
	for _, row := range []string{
		"HTTP keep-alive, 64 conns, req/s | - | 50.0k | 20.0k fd-gso | 50.0k | - | 1.00 | 2.50",
		"HTTP: CPU without NIC, us/req | - | 12.0 | 30.0 fd-gso | 15.0 | - | 1.25 | 0.50",
		"HTTP keep-alive: twice gVisor's fdbased | 50.0k req/s | 20.0k fd-gso | 2.50 | reached",
		"CPU per request without NIC: the kernel's | 15.0 us/req | 12.0 kernel/tap | 1.25 | missed",
		"p99 at equal load: the kernel's | 3000 us | 4000 kernel/tap | 0.75 | reached",
		"DNS: the kernel's | 90.0k q/s | 100.0k kernel/tap | 0.90 | missed",
		"DNS queries lost: none | 0 | - | - | reached",
		"HTTP keep-alive, 64 conns, req/s | - | 20.0k fd-gso | 21.0k | - | 1.05",
		"packet sockets: HTTP keep-alive: gVisor's fdbased | 21.0k req/s | 20.0k fd-gso | 1.05 | " +
			"reached",
		"packet sockets: bulk to server: gVisor's fdbased | 740 MB/s | 1000 fd-gso | 0.74 | " +
			"missed",
		"CPU when idle: under 1 % of a core | 0.30 % of a core | - | - | reached",
		"in memory, one core, 1 flow: 3.6 GB/s | 3600 MB/s | - | - | reached",
		"in memory, one core: 48,000 HTTP requests/s | 40.0k req/s | - | - | missed",
	} {
		if !hasRow(out, row) {
			t.Errorf("no row %q in\n%s", row, out)
		}
	}
	if strings.Contains(out, "1 flow: twice") {
		t.Error("an aim that was not measured has a verdict")
	}
}

// hasRow compares rows, ignoring the blanks that align columns.
func hasRow(text, row string) bool {
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if strings.Join(cells, " | ") == row {
			return true
		}
	}
	return false
}

func TestPaste(t *testing.T) {
	name := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(name, []byte("a\n"+tablesBegin+"old\n"+tablesEnd+"z\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for _, tables := range []string{"one\n", "two\n"} { // repeatedly
		if err := pasteInto(name, tables); err != nil {
			t.Fatal(err)
		}
		got, _ := os.ReadFile(name)
		if want := "a\n" + tablesBegin + "\n" + tables + "\n" + tablesEnd +
			"z\n"; string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, text := range []string{"", tablesBegin, tablesEnd, tablesEnd + tablesBegin} {
		if _, err := paste(text, "x"); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// TestAgain prints the saved results of an earlier run.
func TestAgain(t *testing.T) {
	dir := t.TempDir()
	if err := someResults().save(dir); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if code := run(t.Context(), []string{"-again", "-out", dir}, &out, io.Discard); code != 0 ||
		!strings.Contains(out.String(), "50.0k") {
		t.Errorf("code %d, printed %q", code, &out)
	}
	if code := run(t.Context(), []string{"-again", "-out", t.TempDir()},
		io.Discard, io.Discard); code != 1 {
		t.Errorf("nothing saved: code %d", code)
	}
}

// TestJoin makes two runs one.
func TestJoin(t *testing.T) {
	one, other, out := t.TempDir(), t.TempDir(), t.TempDir()
	r := someResults()
	if err := errors.Join(r.save(one), r.save(other)); err != nil {
		t.Fatal(err)
	}
	args := []string{"-join", one + "," + other, "-out", out}
	if code := run(t.Context(), args, io.Discard, io.Discard); code != 0 {
		t.Fatalf("code %d", code)
	}
	got, err := loadResults(out)
	if err != nil {
		t.Fatal(err)
	}
	if got.Rounds != 2*r.Rounds || len(got.Noise) != 2*len(r.Noise) {
		t.Errorf("%d rounds, noise %v", got.Rounds, got.Noise)
	}
	for _, c := range r.Peers {
		for key, samples := range c.Samples {
			if n := len(got.column(c.Name).Samples[key]); n != 2*len(samples) {
				t.Errorf("%s, %s: %d samples, want %d", c.Name, key, n, 2*len(samples))
			}
		}
	}
	r.Machine.CPU = "another"
	if err := r.save(other); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	if code := run(t.Context(), args, io.Discard, &said); code != 1 ||
		!strings.Contains(said.String(), "another") {
		t.Errorf("runs of two machines: code %d, %s", code, &said)
	}
}
