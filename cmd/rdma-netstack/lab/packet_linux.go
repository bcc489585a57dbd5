package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Port sends and receives whole Ethernet frames on one interface (AF_PACKET). It sees what the
// interface receives and, unlike a capture, not what the machine itself sends there. Needs
// CAP_NET_RAW.
type Port struct {
	file *os.File
	MAC  net.HardwareAddr // of the interface
}

// OpenPort opens the interface of the calling thread's namespace, with promiscuous mode on.
func OpenPort(ifname string) (*Port, error) {
	ifc, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	if err := bindPort(fd, ifc.Index); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	return &Port{file: os.NewFile(uintptr(fd), "packet:"+ifname), MAC: ifc.HardwareAddr}, nil
}

func bindPort(fd, ifindex int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return err
	}
	promisc := &unix.PacketMreq{Ifindex: int32(ifindex), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET,
		unix.PACKET_ADD_MEMBERSHIP, promisc); err != nil {
		return err
	}
	var all [2]byte
	binary.BigEndian.PutUint16(all[:], unix.ETH_P_ALL)
	return unix.Bind(fd,
		&unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(all[:]), Ifindex: ifindex})
}

// LeaveOutTCP keeps TCP segments from Recv, from now on, and drops all that has come before: a few
// segments of a busy connection, of 64 KiB each, fill the socket's receive buffer, and what comes
// then is lost. Frames with VLAN tags or IPv6 extension headers stay.
func (p *Port) LeaveOutTCP() error {
	statement := func(code uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k}
	}
	const half = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	const octet = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	const equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	program := []unix.SockFilter{
		statement(half, 12, 0, 0), // EtherType
		statement(equal, unix.ETH_P_IP, 0, 2),
		statement(octet, 14+9, 0, 0), // protocol
		statement(equal, unix.IPPROTO_TCP, 3, 4),
		statement(equal, unix.ETH_P_IPV6, 0, 3),
		statement(octet, 14+6, 0, 0), // next header
		statement(equal, unix.IPPROTO_TCP, 0, 1),
		statement(unix.BPF_RET|unix.BPF_K, 0, 0, 0),
		statement(unix.BPF_RET|unix.BPF_K, 1<<18, 0, 0),
	}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
		for err := failed; err == nil; {
			_, _, err = unix.Recvfrom(int(fd), nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		}
	})
	return errors.Join(err, failed)
}

// Send sends one frame, from destination address to payload.
func (p *Port) Send(frame []byte) error {
	_, err := p.file.Write(frame)
	return err
}

// Recv returns the next frame received, cut to the length of buf. After the deadline it returns
// os.ErrDeadlineExceeded.
func (p *Port) Recv(buf []byte, deadline time.Time) ([]byte, error) {
	if err := p.file.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	n, err := p.file.Read(buf)
	return buf[:n], err
}

// Close unblocks Recv.
func (p *Port) Close() error { return p.file.Close() }
