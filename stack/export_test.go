package stack

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/dhcp"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// WithRenewal is cfg with another least time between renewals of a lease.
func WithRenewal(cfg Config, least time.Duration) Config {
	cfg.renewal = least
	return cfg
}

// WithDeclineWait is cfg with another time between a DECLINE and the next DISCOVER.
func WithDeclineWait(cfg Config, wait time.Duration) Config {
	cfg.declineWait = wait
	return cfg
}

// WithOrphanRate is cfg with another least rate at which a closed connection's peer must receive
// what is left, in bytes per second.
func WithOrphanRate(cfg Config, rate int) Config {
	cfg.orphanRate = rate
	return cfg
}

// DeclineWait is that time.
const DeclineWait = dhcp.DeclineWait

// Rounds is how often a test repeats what costs ten times as much with the race detector, which
// sees as much in two rounds.
func Rounds(n int) int {
	if racing.Detector {
		return min(n, 2)
	}
	return n
}

// Servers are the resolvers in use.
func (s *Stack) Servers() []netip.Addr { return s.names.dns.Servers() }

// TimeOut does what the link does when a connection's peer has been silent for so long.
func (c *TCPConn) TimeOut(silent time.Duration) (limit time.Duration) {
	return c.recovery.TimeOut(silent)
}

// LinkIsUp is what a stack does when its link is there again.
func (s *Stack) LinkIsUp() { s.linkIsUp() }

// MACMoved does what a stack does when it has another MAC.
func (s *Stack) MACMoved() { s.addrs.AnnounceTwice() }

// Reroute is what a stack does when its packet port may send by another netdev now.
func (s *Stack) Reroute() {
	s.backendChanged(failover.Change{State: failover.Fallback, Backend: rdma.BackendPacket,
		Rerouted: true})
}

// WorksOff says whether netstack is waited for to take from its queues what they hold.
func (s *Stack) WorksOff() bool { return s.handover.WorksOff() }

// BondFacts is what sysfs and rtnetlink say of a bond, for WithBond. All but Members is guarded by
// Mu.
type BondFacts struct {
	Mu      sync.Mutex
	Below   hostnet.Below
	Changed chan struct{}        // a token: Below is another one
	Members map[string]dv.Config // how to open the device of each port
}

// WithBond is cfg on a bond whose ports a test has made.
func WithBond(cfg Config, f *BondFacts) Config {
	below := func() hostnet.Below {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		b := f.Below
		b.Devices = slices.Clone(b.Devices)
		return b
	}
	cfg.bond = &uplink.BondFacts{Below: below, Changed: f.Changed,
		Devices: func() (all []dv.DeviceInfo) {
			for _, p := range below().Devices {
				if p.RDMA {
					all = append(all, dv.DeviceInfo{Name: "sim", Netdev: p.Name})
				}
			}
			return all
		},
		Member: func(cfg dv.Config, name string) dv.Config {
			m := f.Members[name]
			cfg.Model.Kernel, cfg.Model.Facts, cfg.Rings.DelayDrop = m.Model.Kernel,
				m.Model.Facts, m.Rings.DelayDrop
			return cfg
		}}
	return cfg
}

// SendQueues is the default of NIC.TxQueues.
func SendQueues(receive, processors int) int { return sendQueues(receive, processors) }

// DefaultWorkers returns the default of TCPOptions.Workers.
func DefaultWorkers(processors int) int { return defaultWorkers(processors) }

// Peers returns what prefixes must not be denied over in place of their sources.
func (s *Stack) Peers() []netip.Addr { return s.conns.peers(s.addrs.Addrs()) }
