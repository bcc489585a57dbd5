package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

// ringFlags holds the flags that pktgen and xconnect share.
type ringFlags struct {
	device      string
	mac         net.HardwareAddr
	promiscuous bool
	queues      int
	rxSize      int
	txSize      int
	mtu         int
	noMultiSeg  bool
	striding    bool
	noEMPW      bool
	blueFlame   bool
	noCompress  bool
	sim         simFlags
}

func (f *ringFlags) addTo(cmd *cobra.Command) {
	f.queues = 1
	addFlags(cmd, "The device",
		opt("device", "NAME", &f.device, "RDMA device, its network interface, or sim (see "+
			"\"rdma-netstack devices\")", deviceNames),
		opt("mac", "MAC", macAddress(&f.mac), "MAC address to receive frames for (default a "+
			"random one)"),
		opt("promiscuous", "", &f.promiscuous, "receive every unicast frame of the port; Linux "+
			"then receives none of them"),
		opt("queues", "N", &f.queues, "receive and send queues, each polled by one goroutine "+
			"that never sleeps"),
		opt("rx-queue-size", "N", &f.rxSize, "frames in a receive ring (default 1024)"),
		opt("tx-queue-size", "N", &f.txSize, "basic blocks of 64 bytes in a send ring (default "+
			"1024)"),
		opt("mtu", "BYTES", &f.mtu, "largest IP packet (default the port's)"),
		opt("no-multi-seg", "", &f.noMultiSeg, "one receive buffer per frame, at any MTU"),
		opt("striding", "", &f.striding, "striding receive ring: one large buffer holds many "+
			"frames"),
		opt("no-empw", "", &f.noEMPW, "no multi-packet WQEs: one send WQE per frame"),
		opt("blueflame", "", &f.blueFlame, "write the WQE of a frame that is sent alone together "+
			"with its doorbell"),
		opt("no-compression", "", &f.noCompress, "no compressed completions: one 64-byte CQE "+
			"per received frame"))
	f.sim.addTo(cmd, "With --device sim")
}

// macAddress reads a MAC address.
func macAddress(mac *net.HardwareAddr) func(string) error {
	return func(s string) (err error) {
		if *mac, err = net.ParseMAC(s); err != nil || len(*mac) != 6 {
			return errors.New("want six bytes, such as 02:00:5e:10:00:01")
		}
		return nil
	}
}

// macOrNetdev reads a MAC address, or netdev for the port's own.
func macOrNetdev(mac *net.HardwareAddr, netdev *bool) func(string) error {
	return func(s string) error {
		if *netdev = s == "netdev"; *netdev {
			return nil
		}
		if err := macAddress(mac)(s); err != nil {
			return fmt.Errorf("%w, or netdev", err)
		}
		return nil
	}
}

// warningLog logs warnings and errors as text.
func warningLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (f *ringFlags) check(given func(flag string) bool) error {
	if f.device == "" {
		return usageError{
			errors.New(
				"--device is missing: an RDMA device, the netdev of one, or sim (\"rdma-netstack " +
					"devices\" lists them)",
			),
		}
	}
	if f.queues < 1 || f.queues > 64 {
		return usageError{fmt.Errorf("--queues %d: want 1 to 64", f.queues)}
	}
	for _, name := range simFlagNames {
		if given(name) && f.device != simDevice {
			return usageError{fmt.Errorf("--%s is for --device sim only", name)}
		}
	}
	return nil
}

// open opens the device. undo closes what it opened, also when open fails.
func (f *ringFlags) open(ctx context.Context, log *slog.Logger, undo *cleanup) (*dv.Device, error) {
	cfg := dv.Config{
		NIC: dv.NIC{Device: f.device, MAC: f.mac, RxQueues: f.queues, TxQueues: f.queues,
			MTU: f.mtu, Steering: dv.Steering{Promiscuous: f.promiscuous},
			Rings: dv.Rings{RxQueueSize: f.rxSize, TxQueueSize: f.txSize, Striding: f.striding}},
		Tuning: dv.Tuning{NoMultiPacketSend: f.noEMPW, NoMultiSegment: f.noMultiSeg,
			BlueFlame: f.blueFlame, NoCompression: f.noCompress},
		Logger: log,
	}
	if f.device == simDevice {
		nic, err := openSim(f.sim, f.mtu, lab.Setup{}, log, undo)
		if err != nil {
			return nil, err
		}
		useSim(&cfg.NIC, nic)
	}
	dev, err := dv.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	undo.add(dev.Close)
	return dev, nil
}

// everySecond calls show each second until ctx ends, with the time since the call before.
func everySecond(ctx context.Context, show func(took time.Duration)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			show(now.Sub(last))
			last = now
		}
	}
}

// rate prints one line of a second's progress.
func rate(w io.Writer, what string, frames, bytes uint64, took time.Duration, more string) {
	s := took.Seconds()
	fmt.Fprintf(w, "%s %12.0f frames/s %9.3f Gbit/s%s\n", what, float64(frames)/s,
		float64(bytes)*8/s/1e9, more)
}
