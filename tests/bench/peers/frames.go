package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// frames are the packets that crossed the client's interface. A super-segment of a veth pair or of
// a TAP with offloads is one.
type frames struct{ to, from float64 }

// frames reads the client's interface.
func (s *sample) frames() frames {
	if s.memory_() {
		return frames{}
	}
	// those of the namespace in which the load process is
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", s.loads.cmd.Process.Pid))
	if err != nil {
		return frames{}
	}
	return parseFrames(string(text), port)
}

func parseFrames(text, ifname string) (f frames) {
	for line := range strings.Lines(text) {
		name, counters, _ := strings.Cut(line, ":")
		// received: bytes, packets and six more; then sent
		if c := strings.Fields(counters); strings.TrimSpace(name) == ifname && len(c) > 9 {
			f.from, _ = strconv.ParseFloat(c[1], 64)
			f.to, _ = strconv.ParseFloat(c[9], 64)
		}
	}
	return f
}

func (f frames) since(before frames) frames {
	return frames{f.to - before.to, f.from - before.from}
}

// packets records the frames per unit of work in either direction.
func (s *sample) packets(name string, work float64) {
	if work == 0 || s.memory_() {
		return
	}
	s.out[name+" to"], s.out[name+" from"] = s.wire.to/work, s.wire.from/work
}
