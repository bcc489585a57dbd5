package xdp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Rules implements packet.Steered: which frames the program leads to our sockets. All others are
// Linux's, and the packet sockets'.
func (p *Port) Rules() []packet.Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	rule := packet.Rule{To: "AF_XDP queues", Program: p.programID}
	switch {
	case p.closed:
		return nil
	case p.bound == 0 && p.lacking != nil:
		rule.Waiting = p.lacking.Error()
	case p.bound < p.queues:
		rule.To = fmt.Sprintf("%d AF_XDP queues of %d", p.bound, p.queues)
	}
	if !p.cfg.Host {
		rule.Match = fmt.Sprintf("unicast, MAC %v", p.MAC())
		if p.cfg.VLAN != 0 {
			rule.Match += fmt.Sprintf(", VLAN %d", p.cfg.VLAN)
		}
		return []packet.Rule{rule}
	}
	list := []packet.Rule{}
	for _, k := range slices.SortedFunc(maps.Keys(p.ports), comparePorts) {
		rule.Match = fmt.Sprintf("%v, MAC %v", k, p.MAC())
		list = append(list, rule)
	}
	return list
}

// comparePorts orders keys by protocol, whether they are of a block, port and address.
func comparePorts(a, b portKey) int {
	return cmp.Or(cmp.Compare(a[keyProtocol], b[keyProtocol]),
		cmp.Compare(a[keyBlock], b[keyBlock]), bytes.Compare(a[keyPort:], b[keyPort:]),
		bytes.Compare(a[:], b[:]))
}

// String describes the ports as rules of a device are described. An address that ends in 12 zero
// bytes is taken for one of IPv4.
func (k portKey) String() string {
	proto := "TCP"
	if k[keyProtocol] == protoUDP {
		proto = "UDP"
	}
	addr, _ := netip.AddrFromSlice(k[:16])
	if [12]byte(k[4:16]) == [12]byte{} {
		addr = netip.AddrFrom4([4]byte(k[:4]))
	}
	port := binary.BigEndian.Uint16(k[keyPort:])
	if k[keyBlock] == 0 {
		return fmt.Sprintf("%s port %d of %v", proto, port, addr)
	}
	return fmt.Sprintf("%s ports %d to %d of %v", proto, port, int(port)+blockSize-1, addr)
}

var _ packet.Steered = (*Port)(nil)
