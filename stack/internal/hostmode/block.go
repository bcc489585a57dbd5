package hostmode

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
)

// blockSize says how many ports a block has.
const blockSize = 256

// Where blocks are: above Linux's ip_local_port_range, which ends at 60999.
const (
	firstBlock = 0xf000
	lastBlock  = 0xff00
)

// block holds blockSize ports of the host, of TCP and of UDP, to connect from. One test of a port's
// upper byte tells whether it is of the block.
type block struct {
	First   uint16
	open    Sockets
	sockets map[netip.Addr][]Socket
}

// openBlock takes the first block, of those from a port on, of which every address has every port.
func openBlock(from int, addrs []netip.Addr, open Sockets) (*block, error) {
	var first error
	for port := from; port <= lastBlock; port += blockSize {
		b := &block{First: uint16(port), open: open, sockets: map[netip.Addr][]Socket{}}
		err := b.addAll(addrs)
		if err == nil {
			return b, nil
		}
		err = errors.Join(err, b.Close())
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("no block of %d ports from %d on is free to connect from: %w; "+
		"other processes have ports in each of them (ss -tuln)", blockSize, firstBlock,
		cmp.Or(first, error(unix.EADDRINUSE)))
}

func (b *block) addAll(addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := b.Add(a); err != nil {
			return err
		}
	}
	return nil
}

// Add takes the block's ports of one more address.
func (b *block) Add(a netip.Addr) (err error) {
	all := make([]Socket, 0, 2*blockSize)
	defer func() {
		if err != nil {
			err = errors.Join(err, closeSockets(all))
		}
	}()
	for i := range uint16(blockSize) {
		for _, p := range []backing.Protocol{backing.TCP, backing.UDP} {
			s, err := b.open.Open(p, netip.AddrPortFrom(a, b.First+i))
			if errors.Is(err, unix.EMFILE) {
				err = fmt.Errorf("%w: %d sockets per address are needed; raise LimitNOFILE, "+
					"ulimit -n", err, 2*blockSize)
			}
			if err != nil {
				return err
			}
			all = append(all, s)
		}
	}
	b.sockets[a] = all
	return nil
}

// FollowDevice renews the filters of all sockets after [Sockets].SetDevice.
func (b *block) FollowDevice() error {
	var errs []error
	for _, all := range b.sockets {
		for _, s := range all {
			errs = append(errs, s.FollowDevice())
		}
	}
	return errors.Join(errs...)
}

// Socket returns that of a port, nil if the block does not have it. It is the block's.
func (b *block) Socket(p backing.Protocol, at netip.AddrPort) Socket {
	all, i := b.sockets[at.Addr()], int(at.Port())-int(b.First)
	if all == nil || i < 0 || i >= blockSize {
		return nil
	}
	return all[2*i+int(p)]
}

// Remove gives the ports of an address back.
func (b *block) Remove(a netip.Addr) error {
	all := b.sockets[a]
	delete(b.sockets, a)
	return closeSockets(all)
}

// Close gives all ports back.
func (b *block) Close() error {
	var errs []error
	for a := range b.sockets {
		errs = append(errs, b.Remove(a))
	}
	return errors.Join(errs...)
}

func closeSockets(all []Socket) error {
	var errs []error
	for _, s := range all {
		if err := s.Close(); err != nil {
			errs = append(errs, os.NewSyscallError("close", err))
		}
	}
	return errors.Join(errs...)
}
