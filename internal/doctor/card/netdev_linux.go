package card

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Netdev is Linux's side of a port: frames are sent as the netdev sends them, and those that it
// receives are seen. The netdev is not made promiscuous, which would change what its e-switch
// passes.
type Netdev struct {
	file *os.File
	done chan struct{} // closed when the reader has ended; nil before Start
}

var _ wire.Wire = (*Netdev)(nil)

// OpenNetdev opens the netdev of that name. It needs CAP_NET_RAW (unix.EPERM).
func OpenNetdev(name string) (*Netdev, error) {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("packet socket on %s: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket on %s: %w: it needs CAP_NET_RAW", name, err)
	}
	var all [2]byte
	binary.BigEndian.PutUint16(all[:], unix.ETH_P_ALL)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(all[:]),
			Ifindex: ifc.Index}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket on %s: %w", name, err), unix.Close(fd))
	}
	return &Netdev{file: os.NewFile(uintptr(fd), "packet socket on "+name)}, nil
}

// longestFrame that is read, in bytes.
const longestFrame = 64 << 10

// Start begins reception.
func (n *Netdev) Start(recv func([]frame.Frame)) error {
	if n.done != nil {
		return wire.ErrStarted
	}
	n.done = make(chan struct{})
	go func() {
		defer close(n.done)
		buf := make([]byte, longestFrame)
		for {
			m, err := n.file.Read(buf)
			if errors.Is(err, unix.ENETDOWN) {
				continue // told once
			}
			if err != nil {
				return
			}
			recv([]frame.Frame{{Data: buf[:m]}})
		}
	}()
	return nil
}

// Send sends the frames as they are.
func (n *Netdev) Send(frames []frame.Frame) (int, error) {
	for i, f := range frames {
		if _, err := n.file.Write(f.Data); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

// Offloads is none: only whole frames are sent.
func (n *Netdev) Offloads() frame.Offload { return 0 }

// Close ends reception.
func (n *Netdev) Close() error {
	err := n.file.Close()
	if n.done != nil {
		<-n.done
	}
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// UnicastList lists the addresses that the netdev of that name takes besides its own, as "bridge
// fdb show" does: those that packet sockets and other users have added (rtnl_fdb_dump of linux
// net/core/rtnetlink.c).
func UnicastList(name string) ([]net.HardwareAddr, error) {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	entries, err := netlink.NeighListExecute(netlink.Ndmsg{Family: unix.AF_BRIDGE,
		Index: uint32(ifc.Index)})
	if err != nil {
		return nil, fmt.Errorf("list forwarding entries of %s: %w", name, err)
	}
	var list []net.HardwareAddr
	for _, e := range entries {
		if e.LinkIndex == ifc.Index && e.Flags&netlink.NTF_SELF != 0 &&
			len(e.HardwareAddr) == 6 && e.HardwareAddr[0]&1 == 0 {
			list = append(list, e.HardwareAddr)
		}
	}
	return list, nil
}
