package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// states are ss's words for the kernel's states of TCP (include/net/tcp_states.h).
var states = [...]string{1: "ESTAB", 2: "SYN-SENT", 3: "SYN-RECV", 4: "FIN-WAIT-1",
	5: "FIN-WAIT-2", 6: "TIME-WAIT", 7: "UNCONN", 8: "CLOSE-WAIT", 9: "LAST-ACK", 10: "LISTEN",
	11: "CLOSING"}

// Conns lists the kernel's connections of TCP that are wanted, by sock_diag(7).
func (k *Kernel) Conns(wanted func(local, remote netip.AddrPort) bool) (list []Conn, err error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.handle == nil {
		return nil, net.ErrClosed
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := k.diag.SocketDiagTCPInfo(family)
		if err != nil {
			return nil, fmt.Errorf("list the kernel's connections: %w", err)
		}
		for _, s := range all {
			m := s.InetDiagMsg
			c := Conn{Local: endpointOf(m.ID.Source, m.ID.SourcePort),
				Remote: endpointOf(m.ID.Destination, m.ID.DestinationPort)}
			if c.Remote.Port() == 0 || int(m.State) >= len(states) || !wanted(c.Local, c.Remote) {
				continue
			}
			c.State, c.RecvQ, c.SendQ = states[m.State], int(m.RQueue), int(m.WQueue)
			if i := s.TCPInfo; i != nil {
				c.setTCPInfo(i)
			}
			list = append(list, c)
		}
	}
	return list, nil
}

func endpointOf(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// setTCPInfo takes over what tcp(7) tells by TCP_INFO.
func (c *Conn) setTCPInfo(i *netlink.TCPInfo) {
	const timestamps, sack = 1, 2 // TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK
	us := func(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
	c.RTO, c.RTT, c.RTTVar = us(i.Rto), us(i.Rtt), us(i.Rttvar)
	c.MSS, c.Cwnd, c.Ssthresh = int(i.Snd_mss), int(i.Snd_cwnd), int(i.Snd_ssthresh)
	c.Unacked, c.Retrans = int(i.Unacked), uint64(i.Total_retrans)
	c.SegsOut, c.SegsIn = uint64(i.Segs_out), uint64(i.Segs_in)
	c.BytesAcked, c.BytesReceived = i.Bytes_acked, i.Bytes_received
	c.Timestamps, c.SACK = i.Options&timestamps != 0, i.Options&sack != 0
	c.SndWscale, c.RcvWscale = int(i.Snd_wscale), int(i.Rcv_wscale)
}
