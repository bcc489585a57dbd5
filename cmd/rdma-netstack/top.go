package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

func topCommand(out streams) *cobra.Command {
	f := topFlags{interval: time.Second}
	cmd := &cobra.Command{
		Use: "top", Short: "what the queues of a running server do", Args: noWords,
		Long: `Shows what each queue of a running server does, every second. On a terminal the picture is renewed
in place, until Ctrl-C; else one is printed after the other.

    RX/s, TX/s   packets per second          BATCH    packets per look at the ring that found some
    RX/TX Mbit/s their bytes                 EMPTY/s  looks that found none
    WAKE/s       ends of a sleep             PER DB   packets per doorbell
    DROP/s       frames dropped by the queue FULL/s   packets that found the send ring full
    BUSY%        time that the worker was not asleep; 100 with --rx-mode polling
    RX LEFT%     of the receive ring left to the NIC before it was given more; at 0 frames are
                 dropped
    TX USED%     of the send ring in use; both "-" with packet sockets, which have no rings`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.showTop(cmd.Context(), out) }}
	f.addTo(cmd,
		opt("interval", "DURATION", &f.interval, "how often"),
		opt("count", "N", &f.count, "how many times (default until Ctrl-C)"))
	return cmd
}

// topFlags holds those of top.
type topFlags struct {
	lookFlags
	interval time.Duration
	count    int
}

// queueRates holds what one queue did, per second but for Batch and PerDoorbell.
type queueRates struct {
	Queue       int     `json:"queue"`
	RxPackets   float64 `json:"rx_packets"`
	RxMbit      float64 `json:"rx_mbit"`
	Batch       float64 `json:"batch"` // packets per poll that found some
	EmptyPolls  float64 `json:"empty_polls"`
	Wakes       float64 `json:"wakes"`
	Busy        float64 `json:"busy"` // share of the time, 0 to 1
	RxDrops     float64 `json:"rx_drops"`
	TxPackets   float64 `json:"tx_packets"`
	TxMbit      float64 `json:"tx_mbit"`
	PerDoorbell float64 `json:"per_doorbell"`
	TxFull      float64 `json:"tx_full"`

	// Of the rings, 0 to 1; nil with packet sockets. RxLeft was free when it was refilled last.
	RxLeft *float64 `json:"rx_left,omitempty"`
	TxUsed *float64 `json:"tx_used,omitempty"`
}

// picture holds what top shows at one time.
type picture struct {
	Time        time.Time    `json:"time"`
	Connections uint64       `json:"connections"`
	Opened      float64      `json:"opened"`      // connections accepted and dialed, per second
	Retransmits float64      `json:"retransmits"` // segments per second
	Queues      []queueRates `json:"queues"`
}

func (f *topFlags) showTop(ctx context.Context, out streams) error {
	if f.interval <= 0 || f.count < 0 {
		return usageError{fmt.Errorf("--interval %v --count %d: want a time, such as 1s, and a "+
			"number", f.interval, f.count)}
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	file, _ := out.stdout.to.(*os.File)
	inPlace := !f.json && isTerminal(file)
	return each(ctx, server, f.interval, f.count, func(before, now admin.Counters) error {
		p := pictureOf(before, now)
		if f.json {
			return json.NewEncoder(out.stdout).Encode(p)
		}
		var b bytes.Buffer
		if inPlace {
			b.WriteString("\x1b[H\x1b[2J") // ECMA-48: cursor to the corner, erase everything
		}
		p.print(&b)
		_, err := b.WriteTo(out.stdout)
		return err
	})
}

// isTerminal says whether f is a character device, which a pipe and a file are not.
func isTerminal(f *os.File) bool {
	if f == nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// each reads the counters of a server every interval, and calls show with each reading and the one
// before. It ends after count calls, 0: never, when ctx is done, and with show's error.
func each(ctx context.Context, server running.Server, interval time.Duration, count int,
	show func(before, now admin.Counters) error) error {
	var before admin.Counters
	if err := server.Get(ctx, "/stats", &before); err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; count == 0 || n < count; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var now admin.Counters
		if err := server.Get(ctx, "/stats", &now); err != nil {
			return err
		}
		if err := show(before, now); err != nil {
			return err
		}
		before = now
	}
	return nil
}

// pictureOf returns what happened between two readings. Queues of packet sockets count frames where
// rings count packets.
func pictureOf(before, now admin.Counters) picture {
	seconds := max(now.Time.Sub(before.Time).Seconds(), 1e-9)
	added := func(format string, queue int) float64 {
		name := format
		if queue >= 0 {
			name = fmt.Sprintf(format, queue)
		}
		return float64(now.Counters[name] - min(before.Counters[name], now.Counters[name]))
	}
	rate := func(queue int, formats ...string) (sum float64) {
		for _, f := range formats {
			sum += added(f, queue)
		}
		return sum / seconds
	}
	p := picture{Time: now.Time, Connections: now.Gauges["tcp_current_established"],
		Opened: rate(-1, "tcp_passive_connection_openings",
			"tcp_active_connection_openings"),
		Retransmits: rate(-1, "tcp_retransmits")}
	for i := 0; hasQueue(now, i); i++ {
		rx := rate(i, "rx%d_packets", "rx%d_frames")
		tx := rate(i, "tx%d_packets", "tx%d_frames")
		p.Queues = append(p.Queues, queueRates{Queue: i,
			RxPackets: rx, RxMbit: rate(i, "rx%d_bytes") * 8 / 1e6,
			Batch:      ratio(rx, rate(i, "rx%d_hits")),
			EmptyPolls: max(0, rate(i, "rx%d_polls", "rx%d_calls")-rate(i, "rx%d_hits")),
			Wakes:      rate(i, "rx%d_events", "rx%d_waits"),
			RxDrops: rate(i, "rx%d_drops_too_long", "rx%d_drops_error", "rx%d_drops_malformed",
				"rx%d_dropped", "rx%d_too_long", "rx%d_malformed"),
			TxPackets: tx, TxMbit: rate(i, "tx%d_bytes") * 8 / 1e6,
			PerDoorbell: ratio(tx, rate(i, "tx%d_doorbells", "tx%d_calls")),
			TxFull:      rate(i, "tx%d_stalls", "tx%d_full"),
			Busy:        min(1, max(0, 1-rate(i, "rx%d_asleep_nanos")/1e9)),
			RxLeft:      share(now, "rx%d_ring_left", "rx%d_ring_size", i),
			TxUsed:      share(now, "tx%d_ring_used", "tx%d_ring_size", i),
		})
	}
	return p
}

func hasQueue(c admin.Counters, i int) bool {
	_, ok := c.Value(fmt.Sprintf("rx%d_bytes", i))
	return ok
}

// share returns one gauge of a queue by another; nil if there are none.
func share(now admin.Counters, of, size string, queue int) *float64 {
	n, ok := now.Gauges[fmt.Sprintf(of, queue)]
	if !ok {
		return nil
	}
	r := ratio(float64(n), float64(now.Gauges[fmt.Sprintf(size, queue)]))
	return &r
}

// percent formats a share, as "-" where there is no ring.
func percent(share *float64) string {
	if share == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f", 100**share)
}

// ratio returns 0 where nothing happened.
func ratio(of, by float64) float64 {
	if by == 0 {
		return 0
	}
	return of / by
}

func (p *picture) print(w io.Writer) {
	fmt.Fprintf(w, "%s   %d connections, %.0f opened/s, %.0f retransmits/s\n",
		p.Time.Format(time.TimeOnly), p.Connections, p.Opened, p.Retransmits)
	t := tabwriter.NewWriter(w, 6, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "QUEUE\tRX/s\tRX Mbit/s\tBATCH\tEMPTY/s\tWAKE/s\tBUSY%\tRX LEFT%\tDROP/s\t"+
		"TX/s\tTX Mbit/s\tPER DB\tTX USED%\tFULL/s\t")
	for _, q := range p.Queues {
		fmt.Fprintf(t, "%d\t%.0f\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\t%s\t%.0f\t"+
			"%.0f\t%.1f\t%.1f\t%s\t%.0f\t\n",
			q.Queue, q.RxPackets, q.RxMbit, q.Batch, q.EmptyPolls, q.Wakes, 100*q.Busy,
			percent(q.RxLeft), q.RxDrops, q.TxPackets, q.TxMbit, q.PerDoorbell,
			percent(q.TxUsed), q.TxFull)
	}
	t.Flush()
}
