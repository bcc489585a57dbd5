package admin

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Status holds what the status page shows at one time. Time is when it was read.
type Status struct {
	Time    time.Time  `json:"time"`
	Info    Info       `json:"info"`
	Stats   Counters   `json:"stats"`
	Errors  []Problem  `json:"errors"`
	Health  []Reporter `json:"health"`
	Sockets Sockets    `json:"sockets"`
	// Netdev names the interface that Linux has on the same port; nil if there is none.
	Netdev *Traffic `json:"netdev,omitempty"`
	// Filter shows the packet filter; nil if there is nothing in it.
	Filter *FilterView `json:"filter,omitempty"`
}

// Sockets are counts, and the sockets that are shown.
type Sockets struct {
	TCP map[string]int `json:"tcp"` // by state
	UDP int            `json:"udp"`
	// Shown lists the listeners and the connections with the most bytes, 50 at most.
	Shown []stack.Socket `json:"shown"`
}

// Traffic holds what an interface counts; bytes without FCS.
type Traffic struct {
	Name      string `json:"name"`
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
}

const (
	// statusPause gives the time between two readings. All viewers see the same.
	statusPause = time.Second
	// shownSockets gives the most that a Status lists.
	shownSockets = 50
	// socketShare gives the part of the time that looking at the sockets and the filter may take: a
	// hundredth.
	socketShare = 100
)

// statusCache holds the last reading, so that more viewers cost no more readings.
type statusCache struct {
	mu          sync.Mutex // guards what follows, and is held while reading
	last        Status
	nextSockets time.Time // not before then they are looked at again
}

// currentStatus returns the last reading, or a new one if that is old.
func (h *handler) currentStatus() Status {
	c := &h.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if began.Sub(c.last.Time) < statusPause/2 {
		return c.last
	}
	counters := Count(h.Stack)
	s := Status{Time: counters.Time, Info: h.about(), Stats: counters, Errors: Problems(counters),
		Health: Health(h.Stack), Sockets: c.last.Sockets, Netdev: h.readNetdev(),
		Filter: c.last.Filter}
	if looked := time.Now(); !looked.Before(c.nextSockets) {
		s.Sockets = summarizeSockets(h.Stack.Sockets())
		s.Filter = viewFilter(h.Stack.Filter().Status())
		now := time.Now()
		c.nextSockets = now.Add(socketShare * now.Sub(looked))
	}
	c.last = s
	return s
}

// summarizeSockets counts the sockets and picks those that are shown.
func summarizeSockets(all []stack.Socket) Sockets {
	s := Sockets{TCP: map[string]int{}, Shown: []stack.Socket{}}
	for _, so := range all {
		if so.Network == "udp" {
			s.UDP++
		} else {
			s.TCP[so.State]++
		}
	}
	bytes := func(so stack.Socket) uint64 {
		if so.TCP == nil {
			return 1<<64 - 1 // listeners and UDP sockets come first
		}
		return so.TCP.BytesReceived + so.TCP.BytesAcked
	}
	slices.SortStableFunc(all, func(a, b stack.Socket) int {
		return cmp.Compare(bytes(b), bytes(a))
	})
	s.Shown = append(s.Shown, all[:min(len(all), shownSockets)]...)
	return s
}

// readNetdev returns what Linux counts on the port's interface.
func (h *handler) readNetdev() *Traffic {
	if h.Netdev != nil {
		t := h.Netdev()
		return &t
	}
	name := ""
	if d := h.Stack.Device(); d != nil {
		name = d.Netdev()
	}
	return netdevOf("/sys/class/net", name)
}

// netdevOf reads the counters of an interface below root; nil if it has none.
func netdevOf(root, name string) *Traffic {
	t := Traffic{Name: name}
	for file, to := range map[string]*uint64{"rx_packets": &t.RxPackets, "rx_bytes": &t.RxBytes,
		"tx_packets": &t.TxPackets, "tx_bytes": &t.TxBytes} {
		text, err := os.ReadFile(filepath.Join(root, name, "statistics", file))
		if err != nil || name == "" {
			return nil
		}
		if *to, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return nil
		}
	}
	return &t
}
