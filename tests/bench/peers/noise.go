package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stopwatch measures how much of the machine others used while it ran.
type stopwatch struct {
	start     time.Time
	busy, own float64
}

func startWatch() stopwatch {
	return stopwatch{time.Now(), machineCPU(), ownCPU()}
}

// ownCPU is of this process and of the programs it has waited for.
func ownCPU() float64 { return cpuOf(unix.RUSAGE_SELF) + cpuOf(unix.RUSAGE_CHILDREN) }

// ours is the processor time of this process and its programs, in seconds.
func (w stopwatch) ours() float64 { return ownCPU() - w.own }

// others is the number of processors that others used: known is what our running children have
// used, in seconds.
func (w stopwatch) others(known float64) float64 {
	wall := time.Since(w.start).Seconds()
	return max(0, machineCPU()-w.busy-w.ours()-known) / wall
}

// machineCPU is the processor time of all processes, stolen time included, in seconds since boot.
func machineCPU() (busy float64) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var user, nice, system, idle, iowait, irq, softirq, steal float64
	fmt.Sscanf(line, "cpu %f %f %f %f %f %f %f %f", &user, &nice, &system, &idle,
		&iowait, &irq, &softirq, &steal)
	const ticks = 100 // USER_HZ
	return (user + nice + system + irq + softirq + steal) / ticks
}
