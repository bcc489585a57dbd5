package stack

import (
	"context"
	"errors"
	"runtime"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// Open opens the RDMA device cfg.NIC and makes a stack on its queues. Where that names a netdev
// without an mlx5 device, packet sockets take their place, with a line in the log: see
// [Config.Backend]. ctx bounds opening only; the error then says what it was waiting for.
//
// If the device fails or is removed later, the stack goes on, on packet sockets or on nothing until
// a device is there again: see [Config.MaxOutage].
func Open(ctx context.Context, cfg Config) (*Stack, error) {
	if cfg.NIC.Logger == nil {
		cfg.NIC.Logger = cfg.Logger
	}
	if !cfg.NIC.Clock.Virtual() {
		cfg.NIC.Clock = cfg.Clock
	}
	if cfg.NIC.Random == nil {
		cfg.NIC.Random = cfg.Random
	}
	if cfg.NIC.TxQueues == 0 {
		cfg.NIC.TxQueues = sendQueues(cfg.NIC.RxQueues, runtime.GOMAXPROCS(0))
	}
	if cfg.NIC.ActiveRxQueues == 0 {
		cfg.NIC.ActiveRxQueues = cfg.linkOptions().ActiveRxQueues(cfg.NIC.RxQueues)
	}
	if cfg.Host {
		return openHost(ctx, cfg)
	}
	cfg.adopt()
	linux, err := readNetdevConfig(&cfg) // before the device is touched
	if err != nil {
		return nil, err
	}
	s, err := build(cfg, linux)
	if err != nil {
		return nil, err
	}
	if err := s.open(ctx, s.health.dumped(cfg.NIC)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// maxSendQueues bounds the default of NIC.TxQueues: each queue takes up to 1 MiB of pinned memory.
const maxSendQueues = 8

// sendQueues is the default of NIC.TxQueues: twice the processors. netstack sends with a connection
// locked, and its goroutines look at a locked connection again and again. So a goroutine that waits
// for the lock of a send queue costs others time as well.
func sendQueues(receive, processors int) int {
	if processors == 1 {
		return 1
	}
	return max(receive, min(2*processors, maxSendQueues))
}

// open gives s a device and its link. What it has opened is closed by Close, if not by itself.
func (s *Stack) open(ctx context.Context, cfg dv.Config) error {
	link, err := s.openBackend(ctx, cfg)
	if err != nil {
		return err
	}
	if err := s.join(link); err != nil {
		link.Close()
		return err
	}
	if err := s.attach(ctx, link); err != nil {
		return err
	}
	s.keepLink(cfg)
	if !s.nic.LinkUp() {
		s.health.report(reportLink, errLinkDown)
	}
	s.watched = make(chan struct{})
	go s.watch()
	return nil
}
