package iperf3d

import (
	"syscall"
	"time"
)

// results holds what both sides send each other at the end, with iperf3's names.
type results struct {
	CPUTotal       float64        `json:"cpu_util_total"`
	CPUUser        float64        `json:"cpu_util_user"`
	CPUSystem      float64        `json:"cpu_util_system"`
	HasRetransmits int            `json:"sender_has_retransmits"`
	Congestion     string         `json:"congestion_used,omitempty"`
	Streams        []streamResult `json:"streams"`
}

// streamResult holds the result of one stream.
type streamResult struct {
	ID             int     `json:"id"`
	Bytes          int64   `json:"bytes"`
	Retransmits    int     `json:"retransmits"` // -1: not known
	Jitter         float64 `json:"jitter"`      // seconds
	Errors         int64   `json:"errors"`
	OmittedErrors  int64   `json:"omitted_errors"`
	Packets        int64   `json:"packets"`
	OmittedPackets int64   `json:"omitted_packets"`
	StartTime      float64 `json:"start_time"` // seconds
	EndTime        float64 `json:"end_time"`
}

// resultAfter returns the stream's counters after a test of that duration.
func (s *stream) resultAfter(d time.Duration) streamResult {
	return streamResult{
		ID: s.id, Bytes: s.bytes.Load() - s.omitted.bytes, Retransmits: -1,
		Jitter: time.Duration(s.jitter.Load()).
			Seconds(),
		Errors: s.errors.Load(), OmittedErrors: s.omitted.errors,
		Packets: s.packets.Load(), OmittedPackets: s.omitted.packets, EndTime: d.Seconds(),
	}
}

// cpuTimes is the processor time this process has used.
type cpuTimes struct{ user, system time.Duration }

func readCPU() cpuTimes {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return cpuTimes{}
	}
	return cpuTimes{time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())}
}

// percentSince returns the processor use since begin.
func (begin cpuTimes) percentSince(d time.Duration) (user, system float64) {
	d = max(d, 1) // no NaN, which JSON does not have
	now := readCPU()
	return 100 * float64(
		now.user-begin.user,
	) / float64(d), 100 * float64(now.system-begin.system) / float64(d)
}
