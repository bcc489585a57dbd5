package packet

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// bufferSize says what is asked for as socket buffer, in bytes each way.
const bufferSize = 8 << 20

// newSocket makes a packet socket that receives nothing yet: it is of no protocol.
func newSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) {
		return -1,
			fmt.Errorf("packet sockets need CAP_NET_RAW: setcap cap_net_raw+ep on the program, "+
				"docker --cap-add NET_RAW, or be root: %w", err)
	}
	if err != nil {
		return -1, fmt.Errorf("make a packet socket: %w", err)
	}
	return fd, nil
}

// kernelCutsUDP says whether sockets with PACKET_VNET_HDR may leave UDP to be cut up: since Linux
// 6.2 (include/linux/virtio_net.h). A kernel cannot be asked: it sends what it takes.
func kernelCutsUDP() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	return atLeast(unix.ByteSliceToString(u.Release[:]), 6, 2)
}

// atLeast reports whether a release such as 6.12.48-cloud is of this version or a later one.
func atLeast(release string, major, minor int) bool {
	var x, y int
	n, _ := fmt.Sscanf(release, "%d.%d", &x, &y)
	return n == 2 && (x > major || x == major && y >= minor)
}

// askAddress takes kind and address of the interface from a socket that is bound to it.
func (i *iface) askAddress(fd int) error {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("address of the interface: %w", err)
	}
	ll, ok := sa.(*unix.SockaddrLinklayer)
	if i.ethernet = ok && ll.Hatype == unix.ARPHRD_ETHER && ll.Halen == 6; i.ethernet {
		i.mac = append(i.mac[:0], ll.Addr[:6]...)
	}
	return nil
}

// bindTo has the socket receive every frame of the interface, but for those that its filter drops.
func bindTo(fd, index int) error {
	var all [2]byte
	binary.BigEndian.PutUint16(all[:], unix.ETH_P_ALL)
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(all[:]),
		Ifindex: index})
}

// prepareAndBind sets what must be in place before the first frame, and then binds. No frame
// passes.
func prepareAndBind(fd, index int) error {
	for _, opt := range []struct {
		number int
		name   string
	}{
		{unix.PACKET_VNET_HDR, "PACKET_VNET_HDR"},
		{unix.PACKET_AUXDATA, "PACKET_AUXDATA"},
		{unix.PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING (linux 4.20)"},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, opt.number, 1); err != nil {
			return fmt.Errorf("set %s: %w", opt.name, err)
		}
	}
	growBuffers(fd)
	if err := setFilter(fd, rejectAll()); err != nil {
		return fmt.Errorf("attach a filter: %w", err)
	}
	if err := bindTo(fd, index); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// growBuffers asks for more than the system's limit first, which needs CAP_NET_ADMIN. Smaller ones
// only lose frames sooner.
func growBuffers(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bufferSize) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, bufferSize)
	}
}

// setMembership has the NIC pass frames to an address, to every group if it is nil, or ends that.
// It ends with the socket.
func setMembership(fd, index, option int, mac []byte) error {
	m := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_ALLMULTI}
	if mac != nil {
		m.Type, m.Alen = unix.PACKET_MR_UNICAST, uint16(copy(m.Address[:], mac))
		if mac[0]&1 != 0 {
			m.Type = unix.PACKET_MR_MULTICAST
		}
	}
	return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, option, &m)
}

// Bits of the argument of PACKET_FANOUT (include/uapi/linux/if_packet.h), above the group's number.
const (
	fanoutHash     = 0
	fanoutUniqueID = 0x2000
)

// joinFanout makes the sockets, bound all, one group: each flow comes to one of them. The kernel
// finds the group a number that no other has.
func joinFanout(fds []int) error {
	if len(fds) == 1 {
		return nil
	}
	arg := (fanoutHash | fanoutUniqueID) << 16
	for i, fd := range fds {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT, arg); err != nil {
			return fmt.Errorf("spread frames over %d sockets: %w", len(fds), err)
		}
		if i > 0 {
			continue
		}
		group, err := unix.GetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
		if err != nil {
			return fmt.Errorf("number of the group of sockets: %w", err)
		}
		arg = group&0xffff | fanoutHash<<16
	}
	return nil
}
