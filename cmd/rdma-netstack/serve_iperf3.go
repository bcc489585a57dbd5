package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/apps/iperf3d"
)

func serveIperf3Command(out streams) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{Use: "iperf3 --device NAME --address CIDR", Args: noWords,
		Short: "iperf3 server",
		Long: `Answers stock iperf3 clients from a slice of an RDMA port: TCP in both directions, also at once
(--bidir), parallel streams, UDP. It runs one test at a time, as iperf3's own server does. No
authentication, no SCTP. A test whose client sends nothing for 2 s ends when another client waits.`,
		Example: `  rdma-netstack serve iperf3 --device sim
  iperf3 -c 192.0.2.10            client to slice
  iperf3 -c 192.0.2.10 -R -P 4    slice to client, four streams
  iperf3 -c 192.0.2.10 -u -b 1G   UDP`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(":5201", cmd.Flags().Changed); err != nil {
				return err
			}
			if f.handOverToKernel {
				return usageError{errors.New("--handover-to-kernel: an iperf3 test ends at once; " +
					"leave it out")}
			}
			return serveIperf3(cmd.Context(), f, out)
		}}
	addFlags(cmd, "The server", opt("listen", "ADDR:PORT", &f.listen, "where to listen, TCP and "+
		"UDP (default :5201, on every address). Port 0 takes a free one, which the start-up line "+
		"names"))
	f.addTo(cmd)
	return cmd
}

func serveIperf3(ctx context.Context, f serveFlags, out streams) (err error) {
	log := f.log.logger(out.stderr)
	s, err := openSlice(ctx, f, log)
	if err != nil {
		return err
	}
	defer func() { err = s.closeAfter(err) }()
	app := iperf3d.New(iperf3d.Config{Logger: log})
	defer app.Close()
	at := f.listen[0]
	ln, err := s.listenTCP(at)
	if err != nil {
		return listenError("iperf3", at, err)
	}
	at = withBoundPort(at, ln.Addr())
	f.listen[0] = at
	pc, err := s.stack.ListenPacket("udp", at)
	if err != nil {
		ln.Close()
		return listenError("iperf3", at, err)
	}
	where := f.reachable(s)
	if err := f.announce(out, s, "iperf3", fmt.Sprintf("iperf3 -c %s -p %d", where.Addr(),
		where.Port())); err != nil {
		return err
	}
	return serveUntilDone(ctx, app, s.ending(ctx, &f, log, nil),
		func() error { return app.Serve(ln) }, func() error { return app.ServeUDP(pc) })
}
