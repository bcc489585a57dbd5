package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Addresses of the two ends; each pair of ends has a network of its own.
var (
	prefixA = netip.MustParsePrefix("192.0.2.1/24")
	prefixB = netip.MustParsePrefix("192.0.2.2/24")
)

const (
	portA = "192.0.2.1:5201"
	portB = "192.0.2.2:5201"
	tap   = "slice0" // in the kernel's network
)

// streams is what is measured across the model of the NIC, and what to close at the end, last
// first.
type streams struct {
	list   []*stream
	slices []*slice // in the order they were made
	undo   []func() error
}

func (s *streams) add(name string, dial func(string) (net.Conn, error),
	to sockets, address string) error {
	st, err := connect(name, dial, to, address)
	if err != nil {
		return err
	}
	s.list = append(s.list, st)
	s.undo = append(s.undo, st.close)
	return nil
}

func (s *streams) close() (err error) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, s.undo[i]())
	}
	return err
}

// offloads are the settings of each row: segmentation by the NIC on the sending side, merging of
// segments on the receiving side.
var offloads = []struct {
	name string
	opts rdma.Options
}{
	{"TSO,GRO", rdma.Options{}},
	{"TSO", rdma.Options{NoMerge: true}},
	{"GRO", rdma.Options{NoSegmentation: true}},
	{"none", rdma.Options{NoMerge: true, NoSegmentation: true}},
}

// inMemory adds streams between two stacks on one cable, one pair for each row.
func (s *streams) inMemory() error {
	for _, o := range offloads {
		wa, wb := wire.Pair()
		a, err := s.slice(wa, prefixA, o.opts)
		if err != nil {
			return errors.Join(err, wb.Close())
		}
		b, err := s.slice(wb, prefixB, o.opts)
		if err != nil {
			return err
		}
		if err := s.add("memory/slice-to-slice/"+o.name, dialer(a), b, portB); err != nil {
			return err
		}
	}
	return nil
}

// kernelRows are streams to and from a kernel behind a TAP interface, which segments and merges by
// itself.
var kernelRows = []struct {
	name     string
	toKernel bool
	opts     rdma.Options
}{
	{"TAP/slice-to-kernel/TSO", true, rdma.Options{}},
	{"TAP/slice-to-kernel/none", true, rdma.Options{NoSegmentation: true}},
	{"TAP/kernel-to-slice/GRO", false, rdma.Options{}},
	{"TAP/kernel-to-slice/none", false, rdma.Options{NoMerge: true}},
}

// withKernel adds streams between a stack and a kernel, each pair in a network of its own.
func (s *streams) withKernel() error {
	for _, row := range kernelRows {
		kernel, err := lab.New(row.name)
		if err != nil {
			return err
		}
		s.undo = append(s.undo, kernel.Close)
		var w *wire.TAP
		if err := kernel.Do(func() error {
			if w, err = wire.OpenTAP(tap); err != nil {
				return err
			}
			return lab.Up(tap, lab.Setup{Addresses: []netip.Prefix{prefixA}})
		}); err != nil {
			return err
		}
		sl, err := s.slice(w, prefixB, row.opts)
		if err != nil {
			return err
		}
		if row.toKernel {
			err = s.add(row.name, dialer(sl), kernel, portA)
		} else {
			err = s.add(row.name, dialer(kernel), sl, portB)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *streams) slice(w wire.Wire, at netip.Prefix, opts rdma.Options) (*slice, error) {
	sl, err := newSlice(w, at, opts)
	if err == nil {
		s.slices, s.undo = append(s.slices, sl), append(s.undo, sl.close)
	}
	return sl, err
}

// caller is an end that connects: a stack, or a kernel.
type caller interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

func dialer(c caller) func(string) (net.Conn, error) {
	return func(address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return c.DialContext(ctx, "tcp", address)
	}
}

// measure runs every stream in turn, rounds times, so that temporary load on the machine affects
// all alike.
func (s *streams) measure(rounds int, length time.Duration, progress func(round int)) error {
	for i := range rounds {
		progress(i)
		for _, st := range s.list {
			if err := st.run(length); err != nil {
				return err
			}
		}
	}
	return nil
}
