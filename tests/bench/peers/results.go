package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// results is everything that a run measured; it is saved unchanged.
type results struct {
	Date    time.Time
	Machine machine
	Rounds  int
	Seconds float64
	Noise   []float64 // of every sample: processors in use by others
	Peers   []*column
	Failed  []failure
}

// column is one peer's results.
type column struct {
	Name, About string
	Plumbing    string
	Samples     map[string][]float64 // by quantity
	Counters    map[string]metrics   // of ours, by bench: the counters of the last sample
	Ours        bool
	Group       string // the peers of the same group are compared
}

type failure struct{ Peer, What, Why string }

type machine struct {
	CPU, Kernel, Go string
	CPUs            int
}

func newResults(flags) *results {
	return &results{Date: time.Now(), Machine: thisMachine()}
}

func thisMachine() machine {
	m := machine{CPU: "unknown", Go: runtime.Version(), CPUs: runtime.NumCPU()}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				m.CPU = strings.TrimSpace(v)
				break
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

func (r *results) add(p *peer) {
	r.Peers = append(r.Peers, &column{p.Name, p.About, p.Plumbing, map[string][]float64{},
		map[string]metrics{}, p.ours(), p.group()})
}

func (r *results) column(name string) *column {
	for _, c := range r.Peers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (r *results) record(p *peer, bench string, s *sample) {
	c := r.column(p.Name)
	for key, v := range s.out {
		c.Samples[key] = append(c.Samples[key], v)
	}
	if len(s.more) > 0 {
		c.Counters[bench] = s.more
	}
	r.Noise = append(r.Noise, s.noise)
}

func (r *results) fail(p *peer, what string, err error) {
	r.Failed = append(r.Failed, failure{p.Name, what, err.Error()})
}

func (r *results) finish() { r.Seconds = time.Since(r.Date).Seconds() }

// Files of a run.
const (
	resultsFile = "results.json"
	chartFile   = "chart.svg"
	tablesFile  = "tables.md" // the short ones
)

// save writes the files.
func (r *results) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		resultsFile: string(data) + "\n", chartFile: chart(r), tablesFile: r.markdown(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("save results: %w", err)
		}
	}
	return nil
}

// spread is the median, minimum and maximum of some values.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) (s spread, ok bool) {
	if len(values) == 0 {
		return s, false
	}
	v := slices.Sorted(slices.Values(values))
	s = spread{v[len(v)/2], v[0], v[len(v)-1]}
	if len(v)%2 == 0 {
		s.median = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return s, true
}

// of is a column's spread of a quantity.
func (c *column) of(key string) (spread, bool) { return spreadOf(c.Samples[key]) }

// ratio is the median of a's samples over b's, computed per round where both have a sample: noise
// that lasts affects both.
func ratio(a, b *column, key string) (spread, bool) {
	x, y := a.Samples[key], b.Samples[key]
	var rs []float64
	for i := range min(len(x), len(y)) {
		if y[i] != 0 {
			rs = append(rs, x[i]/y[i])
		}
	}
	return spreadOf(rs)
}
