package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The short tables are between these lines of a page.
const (
	tablesBegin = "<!-- tables of make bench-peers -->\n"
	tablesEnd   = "<!-- end of tables -->\n"
)

// paste replaces the part of a text between the marks.
func paste(text, tables string) (string, error) {
	before, rest, ok := strings.Cut(text, tablesBegin)
	_, after, ended := strings.Cut(rest, tablesEnd)
	if !ok || !ended {
		return "", fmt.Errorf("no %q followed by %q", strings.TrimSpace(tablesBegin),
			strings.TrimSpace(tablesEnd))
	}
	return before + tablesBegin + "\n" + tables + "\n" + tablesEnd + after, nil
}

// pasteInto replaces the tables in a file.
func pasteInto(name, tables string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	out, err := paste(string(text), tables)
	if err != nil {
		return fmt.Errorf("paste tables into %s: %w", name, err)
	}
	return os.WriteFile(name, []byte(out), 0o644)
}

// loadResults reads the results of an earlier run from its directory.
func loadResults(dir string) (*results, error) {
	data, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read results of an earlier run: %w", err)
	}
	return r, nil
}

// join makes the runs in dirs one, with the rounds of all, and saves it to out. It refuses those of
// different machines, or a run with other peers than the first.
func join(dirs []string, out string) (*results, error) {
	all, err := loadResults(dirs[0])
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs[1:] {
		r, err := loadResults(dir)
		if err != nil {
			return nil, err
		}
		if err := all.append(r); err != nil {
			return nil, fmt.Errorf("join %s to %s: %w", dir, dirs[0], err)
		}
	}
	return all, all.save(out)
}

// append adds the rounds of o.
func (r *results) append(o *results) error {
	if r.Machine != o.Machine {
		return fmt.Errorf("one is of %+v, the other of %+v", r.Machine, o.Machine)
	}
	if len(r.Peers) != len(o.Peers) {
		return fmt.Errorf("one has %d peers, the other %d", len(r.Peers), len(o.Peers))
	}
	for _, from := range o.Peers {
		to := r.column(from.Name)
		if to == nil {
			return fmt.Errorf("only one has the peer %s", from.Name)
		}
		for key, samples := range from.Samples {
			to.Samples[key] = append(to.Samples[key], samples...)
		}
		to.Counters = from.Counters
	}
	r.Rounds += o.Rounds
	r.Seconds += o.Seconds
	r.Noise = append(r.Noise, o.Noise...)
	r.Failed = append(r.Failed, o.Failed...)
	return nil
}
