package main

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"
)

// usage is the resources that a process used between begin and end.
type usage struct {
	Wall, CPU float64 // seconds
	// seconds of CPU in the software NIC and the wire under it, by profile; of a relay: all except
	// what the server's kernel did in it
	Model        float64
	Received     float64 // bytes that the TCP sink received
	Datagrams    float64 // datagrams that the UDP sink received
	Samples      float64 // of the profile
	Sent, Failed float64 // datagrams the UDP source sent, and writes that failed
	More         metrics // counters of the host
}

// meter measures one process. Its profile's clock is 100 Hz.
type meter struct {
	start    time.Time
	cpu      float64
	counts   counts
	profile  bytes.Buffer
	measures bool
	relays   bool // the process is a relay
}

func (m *meter) begin(s *services) error {
	if m.measures {
		pprof.StopCPUProfile()
	}
	m.profile.Reset()
	if err := pprof.StartCPUProfile(&m.profile); err != nil {
		return err
	}
	m.measures = true
	m.counts = s.snapshot()
	m.start, m.cpu = time.Now(), selfCPU()
	return nil
}

func (m *meter) end(s *services, keep string) (*usage, error) {
	if !m.measures {
		return nil, errors.New("end without begin")
	}
	u := &usage{Wall: time.Since(m.start).Seconds(), CPU: selfCPU() - m.cpu}
	pprof.StopCPUProfile() // takes up to 100 ms, which is not measured
	m.measures = false
	now := s.snapshot()
	u.Received, u.Datagrams = now.received-m.counts.received, now.datagrams-m.counts.datagrams
	u.Sent, u.Failed = now.sent-m.counts.sent, now.failed-m.counts.failed
	u.More = metrics{}
	for name, v := range now.more {
		u.More[name] = v - m.counts.more[name]
	}
	share, samples, err := m.modelShare()
	u.Model, u.Samples = share*u.CPU, samples
	if keep != "" {
		err = errors.Join(err, os.WriteFile(keep, m.profile.Bytes(), 0o644))
	}
	return u, err
}

// selfCPU is the processor time of this process so far, in seconds.
func selfCPU() float64 { return cpuOf(unix.RUSAGE_SELF) }

func cpuOf(who int) float64 {
	var r unix.Rusage
	if unix.Getrusage(who, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()).Seconds()
}

// modelPath is the package path of the software NIC: the work of a real NIC.
const modelPath = "github.com/rdma-netstack/rdma-netstack/simnic."

// modelShare is the share of the process's profile that is not the server's work.
func (m *meter) modelShare() (share, samples float64, err error) {
	if m.relays {
		share, samples, err = shareOf(m.profile.Bytes(), relayServer)
		return 1 - share, samples, err
	}
	// it never calls into a stack: it writes rings and events
	return shareOf(m.profile.Bytes(), modelPath)
}

// shareOf returns the share of a CPU profile spent in functions whose names begin with these
// prefixes, or in functions that they call, and the number of samples.
func shareOf(data []byte, prefix string) (share, samples float64, err error) {
	p, err := profile.ParseData(data)
	if err != nil || len(p.Sample) == 0 {
		return 0, 0, err
	}
	inside := 0.0
	for _, s := range p.Sample {
		n := float64(s.Value[0])
		samples += n
		if within(s, prefix) {
			inside += n
		}
	}
	return inside / samples, samples, nil
}

func within(s *profile.Sample, prefix string) bool {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if strings.HasPrefix(line.Function.Name, prefix) {
				return true
			}
		}
	}
	return false
}

// memory is the memory of the process after garbage collection.
func memory() metrics {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return metrics{
		"heap": float64(m.HeapAlloc), "stack": float64(m.StackInuse),
		"rss":        procStatus("VmRSS:") * 1024,
		"goroutines": float64(runtime.NumGoroutine()),
	}
}

// procStatus is a number of /proc/self/status.
func procStatus(key string) float64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key {
			n, _ := strconv.ParseFloat(f[1], 64)
			return n
		}
	}
	return 0
}
