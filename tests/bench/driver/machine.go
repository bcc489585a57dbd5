package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// machine describes the computer and the load of other processes.
func machine() string {
	model := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	load := "?"
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(data), " ")
	}
	return fmt.Sprintf("%s, %d processors, %s, %s/%s; load %s (this program makes 1 of it)",
		model, runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, load)
}
