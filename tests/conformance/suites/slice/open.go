package slice

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// The addresses of the two stacks on the wire; the first is that of Default.
var (
	Server4 = netip.MustParseAddr("192.0.2.10")
	Server6 = netip.MustParseAddr("2001:db8::10")
	Client4 = netip.MustParseAddr("192.0.2.1")
	Client6 = netip.MustParseAddr("2001:db8::1")
)

// Pair is two stacks, each on a slice of a software ConnectX, with a cable in memory between the
// ports.
type Pair struct {
	Server, Client *stack.Stack
	nics           []*simnic.NIC
}

// Open makes a pair. Close ends it.
func Open(ctx context.Context) (*Pair, error) {
	p := &Pair{}
	a, b := wire.Pair()
	var err error
	if p.Server, err = p.open(ctx, a, Server4, Server6); err == nil {
		p.Client, err = p.open(ctx, b, Client4, Client6)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Pair) open(ctx context.Context, port wire.Wire, v4, v6 netip.Addr) (*stack.Stack, error) {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return nil, err
	}
	p.nics = append(p.nics, nic)
	if err := nic.ConnectWire(port); err != nil {
		return nil, err
	}
	return stack.Open(ctx, stack.Config{
		NIC: dv.NIC{Model: dv.Model{
			Kernel: kernel.Opener(nic),
			Facts:  dv.PortFacts{Name: "sim", MAC: nic.MAC(), MTU: nic.MTU()},
		}},
		Addresses:  []netip.Prefix{netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64)},
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
	})
}

// Close ends both stacks and their NICs.
func (p *Pair) Close() (err error) {
	for _, s := range []*stack.Stack{p.Server, p.Client} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	for _, n := range p.nics {
		err = errors.Join(err, n.Close())
	}
	return err
}

// shared is the pair of the whole process: package net's functions have no stack as an argument.
var shared = sync.OnceValue(func() *Pair {
	p, err := Open(context.Background())
	if err != nil {
		panic(err) // nobody to tell: these functions are called by package net's names
	}
	return p
})

// Default is the stack that the functions of this package use. It lasts as long as the process.
func Default() *stack.Stack { return shared().Server }
