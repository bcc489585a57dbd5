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
