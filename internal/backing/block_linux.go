package backing

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// BlockSize says how many ports a Block has.
const BlockSize = 256

// Where blocks are: above Linux's ip_local_port_range, which ends at 60999.
const (
	FirstBlock = 0xf000
	lastBlock  = 0xff00
)

// Block is BlockSize ports of the host, of TCP and of UDP, to connect from. One test of a port's
// upper byte tells whether it is of the block.
type Block struct {
	First   uint16
	filters *Filters
	sockets map[netip.Addr][]*Socket
}

// OpenBlock takes the first block, of those from a port on, of which every address has every port.
func OpenBlock(from int, addrs []netip.Addr, f *Filters) (*Block, error) {
	var first error
	for port := from; port <= lastBlock; port += BlockSize {
		b := &Block{First: uint16(port), filters: f, sockets: map[netip.Addr][]*Socket{}}
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
		"other processes have ports in each of them (ss -tuln)", BlockSize, FirstBlock,
		cmp.Or(first, error(unix.EADDRINUSE)))
}

func (b *Block) addAll(addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := b.Add(a); err != nil {
			return err
		}
	}
	return nil
}

// Add takes the block's ports of one more address.
func (b *Block) Add(a netip.Addr) (err error) {
	all := make([]*Socket, 0, 2*BlockSize)
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(all))
		}
	}()
	for i := range uint16(BlockSize) {
		for _, p := range []Protocol{TCP, UDP} {
			s, err := Open(p, netip.AddrPortFrom(a, b.First+i), b.filters)
			if errors.Is(err, unix.EMFILE) {
				err = fmt.Errorf("%w: %d sockets per address are needed; raise LimitNOFILE, "+
					"ulimit -n", err, 2*BlockSize)
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

// FollowDevice renews the filters of all sockets after [Filters.SetDevice].
func (b *Block) FollowDevice() error {
	var errs []error
	for _, all := range b.sockets {
		for _, s := range all {
			errs = append(errs, s.FollowDevice())
		}
	}
	return errors.Join(errs...)
}

// Socket returns that of a port, nil if the block does not have it. It is the block's.
func (b *Block) Socket(p Protocol, at netip.AddrPort) *Socket {
	all, i := b.sockets[at.Addr()], int(at.Port())-int(b.First)
	if all == nil || i < 0 || i >= BlockSize {
		return nil
	}
	return all[2*i+int(p)]
}

// Remove gives the ports of an address back.
func (b *Block) Remove(a netip.Addr) error {
	all := b.sockets[a]
	delete(b.sockets, a)
	return closeAll(all)
}

// Close gives all ports back.
func (b *Block) Close() error {
	var errs []error
	for a := range b.sockets {
		errs = append(errs, b.Remove(a))
	}
	return errors.Join(errs...)
}

func closeAll(all []*Socket) error {
	var errs []error
	for _, s := range all {
		if err := s.Close(); err != nil {
			errs = append(errs, os.NewSyscallError("close", err))
		}
	}
	return errors.Join(errs...)
}
