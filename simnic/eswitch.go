package simnic

import (
	"slices"
	"sync"
	"sync/atomic"
)

// FunctionKind says what kind of PCI function a NIC is.
type FunctionKind uint8

// The kinds. In front of all but the first is an e-switch in legacy mode.
const (
	LonePF   FunctionKind = iota // physical function, SR-IOV off: all frames of the port reach it
	SwitchPF                     // physical function, SR-IOV on
	VF                           // virtual function
)

// Function describes which frames the e-switch in front of a NIC passes (linux
// drivers/net/ethernet/mellanox/mlx5/core/eswitch.c and esw/legacy.c). Broadcast always passes;
// unicast and multicast pass if the function's lists have the address or its receive mode accepts
// it. Promiscuous and all-multicast apply to physical functions and trusted virtual ones.
type Function struct {
	Kind FunctionKind
	// Trusted is that of `ip link set PF vf N trust on` (esw_update_vport_rx_mode).
	Trusted bool
	// SpoofCheck is that of `ip link set PF vf N spoofchk on`: frames that a virtual function sends
	// from another MAC than its permanent one, Config.MAC, are dropped.
	SpoofCheck bool
}

// eswitch holds the e-switch as far as it concerns this NIC. Frames read a snapshot without a lock.
type eswitch struct {
	fn    Function
	spoof uint64 // the only source that may be sent from; 0: any
	rules atomic.Pointer[vportRules]
	mu    sync.Mutex // one change at a time
}

// vportRules is an immutable snapshot of the NIC vport context as the netdev's driver wrote it.
type vportRules struct {
	unicast, multicast []uint64 // sorted
	promisc, allGroups bool
}

// setLists sets the lists of a netdev with only its own address.
func (s *eswitch) setLists(cfg *Config) {
	s.fn = cfg.Function
	own := macBits(cfg.MAC)
	if s.fn.Kind == VF && s.fn.SpoofCheck {
		s.spoof = own
	}
	s.rules.Store(&vportRules{unicast: []uint64{own}})
}

// passesTo reports whether the e-switch passes a frame to dst to the function.
func (s *eswitch) passesTo(dst uint64, kind cast) bool {
	return s.fn.Kind == LonePF || kind == broadcast || s.isListed(dst, kind)
}

// isListed does what passesTo does behind an e-switch, for what is no broadcast.
func (s *eswitch) isListed(dst uint64, kind cast) bool {
	r := s.rules.Load()
	trusted := s.fn.Kind == SwitchPF || s.fn.Trusted
	list, mode := r.unicast, r.promisc
	if kind == multicast {
		list, mode = r.multicast, r.promisc || r.allGroups
	}
	if mode && trusted {
		return true
	}
	_, found := slices.BinarySearch(list, dst)
	return found
}

// editRules publishes the rules as edit changes them.
func (s *eswitch) editRules(edit func(*vportRules)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.rules.Load()
	edit(&next)
	s.rules.Store(&next)
}

// SetUnicastList replaces the list of unicast addresses of the NIC vport context.
func (n *NIC) SetUnicastList(macs [][6]byte) {
	n.eswitch.editRules(func(r *vportRules) { r.unicast = sortedMACs(macs) })
}

// SetMulticastList replaces the list of multicast addresses of the NIC vport context.
func (n *NIC) SetMulticastList(macs [][6]byte) {
	n.eswitch.editRules(func(r *vportRules) { r.multicast = sortedMACs(macs) })
}

// SetReceiveMode is promisc_all and promisc_mc of the NIC vport context.
func (n *NIC) SetReceiveMode(promisc, allMulticast bool) {
	n.eswitch.editRules(func(r *vportRules) { r.promisc, r.allGroups = promisc, allMulticast })
}

func sortedMACs(macs [][6]byte) []uint64 {
	sorted := make([]uint64, len(macs))
	for i, m := range macs {
		sorted[i] = macBits(m[:])
	}
	slices.Sort(sorted)
	return sorted
}
