package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// compared holds one load's figures, means of all rounds.
type compared struct {
	load  compareLoad
	Host  float64
	Slice float64
}

// comparison holds the results, and says of what.
type comparison struct {
	*scene
	rows []compared
}

// ratio returns more than 1 where the slice is better.
func (c compared) ratio() float64 {
	if c.load.Lower {
		return c.Host / c.Slice
	}
	return c.Slice / c.Host
}

// even gives the deviation of a ratio from 1 below which neither side is better: such short runs
// cannot show less.
const even = 0.1

func (c compared) winner() string {
	switch r := c.ratio(); {
	case r > 1+even:
		return "slice"
	case r < 1/(1+even):
		return "host"
	}
	return "even"
}

func (all *comparison) print(f compareFlags, w io.Writer) error {
	if f.json {
		return all.printJSON(f, w)
	}
	fmt.Fprintf(w, "%s; %s, mean of %d runs of %v, in turn.\n\n", all.intro, runtime.Version(),
		rounds, f.time)
	fmt.Fprintf(w, "  %-44s %10s %10s  %-10s  %s\n", "", "host", "slice", "", "the slice is")
	wins := map[string]int{}
	for _, c := range all.rows {
		wins[c.winner()]++
		fmt.Fprintf(w, "  %-44s %10s %10s  %-10s  %s\n", c.load.Name, digits(c.Host),
			digits(c.Slice), c.load.Unit, c.verdict())
	}
	fmt.Fprintf(w,
		"\nThe slice is faster in %d, slower in %d and as fast, within %.0f %%, in %d.\n",
		wins["slice"], wins["host"], even*100, wins["even"])
	_, err := io.WriteString(w, all.note)
	return err
}

// verdict says what the figures mean, whether higher or lower ones are better.
func (c compared) verdict() string {
	switch r := c.ratio(); c.winner() {
	case "slice":
		return fmt.Sprintf("%.1f times as fast", r)
	case "host":
		return fmt.Sprintf("%.1f times slower", 1/r)
	default:
		return "as fast"
	}
}

// digits formats a value with the precision of such a measurement.
func digits(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func (all *comparison) printJSON(f compareFlags, w io.Writer) error {
	type result struct {
		compareLoad
		Host   float64 `json:"host"`
		Slice  float64 `json:"slice"`
		Ratio  float64 `json:"slice_is_better_by"`
		Winner string  `json:"winner"`
	}
	var results []result
	for _, c := range all.rows {
		results = append(results, result{c.load, c.Host, c.Slice, c.ratio(), c.winner()})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{
		"time": time.Now().
			UTC().
			Format(time.RFC3339),
		"kernel": kernelRelease(), "go": runtime.Version(), "processors": runtime.NumCPU(),
		"host_wire": all.hostWire, "slice_wire": all.sliceWire, "rounds": rounds,
		"host": all.host.http, "slice": all.slice.http,
		"seconds_each": f.time.Seconds(), "results": results,
	})
}

func kernelRelease() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "Linux"
	}
	return "Linux " + strings.TrimSpace(string(release))
}
