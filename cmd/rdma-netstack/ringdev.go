package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// ringFlagsHelp gives the part of the help that the commands on bare rings share.
const ringFlagsHelp = `
The device:
  --device NAME       RDMA device, its network interface, or sim (see "rdma-netstack devices")
  --mac MAC           MAC address to receive frames for (default: a random one)
  --promiscuous       receive every unicast frame of the port; Linux then receives none of them
  --queues N          receive and send queues, each polled by one goroutine that never sleeps
                      (default 1)
  --rx-queue-size N   frames in a receive ring (default 1024)
  --tx-queue-size N   basic blocks of 64 bytes in a send ring (default 1024)
  --mtu BYTES         largest IP packet (default: the port's)
  --no-multi-seg      one receive buffer per frame, at any MTU
  --striding          striding receive ring: one large buffer holds many frames
  --no-empw           no multi-packet WQEs: one send WQE per frame
  --blueflame         write the WQE of a frame that is sent alone together with its doorbell
  --no-compression    no compressed completions: one 64-byte CQE per received frame
  --sim-wire WIRE     with --device sim: tap:NAME, packet:IFNAME or none (default tap:slice0)
  --sim-netdev WIRE   the port's Linux side, in the same form (default none)
  --sim-card CARD     model of that NIC: cx4lx, cx5, cx6dx, cx7 or bf2 (default cx6dx)
  --faults LIST       faults of that wire, such as drop=1%,reorder=5%
`

// ringFlags are those of pktgen and xconnect.
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

func (f *ringFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.device, "device", "", "")
	macFlag(fs, "mac", &f.mac)
	fs.BoolVar(&f.promiscuous, "promiscuous", false, "")
	fs.IntVar(&f.queues, "queues", 1, "")
	fs.IntVar(&f.rxSize, "rx-queue-size", 0, "")
	fs.IntVar(&f.txSize, "tx-queue-size", 0, "")
	fs.IntVar(&f.mtu, "mtu", 0, "")
	fs.BoolVar(&f.noMultiSeg, "no-multi-seg", false, "")
	fs.BoolVar(&f.striding, "striding", false, "")
	fs.BoolVar(&f.noEMPW, "no-empw", false, "")
	fs.BoolVar(&f.blueFlame, "blueflame", false, "")
	fs.BoolVar(&f.noCompress, "no-compression", false, "")
	f.sim.define(fs)
}

func macFlag(fs *flag.FlagSet, name string, mac *net.HardwareAddr) {
	fs.Func(name, "", func(s string) (err error) {
		if *mac, err = net.ParseMAC(s); err != nil || len(*mac) != 6 {
			return errors.New("want six bytes, such as 02:00:5e:10:00:01")
		}
		return nil
	})
}

// macOrNetdevFlag is --mac with a MAC address, or with netdev for the port's own.
func macOrNetdevFlag(fs *flag.FlagSet, mac *net.HardwareAddr, netdev *bool) {
	fs.Func("mac", "", func(s string) (err error) {
		if *netdev = s == "netdev"; *netdev {
			return nil
		}
		if *mac, err = net.ParseMAC(s); err != nil || len(*mac) != 6 {
			return errors.New("want six bytes, such as 02:00:5e:10:00:01, or netdev")
		}
		return nil
	})
}

// warningLog logs warnings and errors as text.
func warningLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (f *ringFlags) check(fs *flag.FlagSet) error {
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
	set := givenFlags(fs)
	for _, name := range simFlagNames {
		if set[name] && f.device != simDevice {
			return usageError{fmt.Errorf("--%s is for --device sim only", name)}
		}
	}
	return nil
}

// open opens the device. undo closes what it opened, also when open fails.
func (f *ringFlags) open(ctx context.Context, log *slog.Logger, undo *cleanup) (*dv.Device, error) {
	cfg := dv.Config{
		Device: f.device, MAC: f.mac, Promiscuous: f.promiscuous,
		RxQueues: f.queues, TxQueues: f.queues,
		RxQueueSize: f.rxSize, TxQueueSize: f.txSize, MTU: f.mtu, Logger: log,
		NoMultiPacketSend: f.noEMPW, NoMultiSegment: f.noMultiSeg,
		Striding: f.striding, BlueFlame: f.blueFlame, NoCompression: f.noCompress,
	}
	if f.device == simDevice {
		nic, err := openSim(f.sim, f.mtu, nil, log, undo)
		if err != nil {
			return nil, err
		}
		useSim(&cfg, nic)
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
	fmt.Fprintf(
		w,
		"%s %12.0f frames/s %9.3f Gbit/s%s\n",
		what,
		float64(frames)/s,
		float64(bytes)*8/s/1e9,
		more,
	)
}
