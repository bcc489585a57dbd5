package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
)

func serveHTTPCommand(out streams) *cobra.Command {
	var f serveFlags
	h := httpFlags{Config: httpd.Config{MinRate: httpd.DefaultMinRate}}
	cmd := &cobra.Command{Use: "http --device NAME --address CIDR", Args: noWords,
		Short: "HTTP server for static files",
		Long: `Serves files over HTTP from a slice of an RDMA port. The slice receives the frames of its own MAC
address; Linux keeps the port's network interface and all other frames.`,
		Example: `  rdma-netstack serve http --device sim
  rdma-netstack serve http --device mlx5_0 --address 192.0.2.10/24 --gateway 192.0.2.1 --root /srv`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(":80", cmd.Flags().Changed); err != nil {
				return err
			}
			if err := h.complete(f.device, cmd.Flags().Changed); err != nil {
				return err
			}
			return serveHTTP(cmd.Context(), f, &h, out)
		}}
	addFlags(cmd, "The server",
		opt("listen", "ADDR:PORT", &f.listen, "where to listen (default :80, on every address). "+
			"Repeat the flag to listen in more places. Port 0 takes a free one, which the "+
			"start-up line names"),
		opt("root", "DIR", &h.Root, "directory of the files to serve. Only regular files are "+
			"served, and no symbolic link that leads out of it. /-/healthz is always served: it "+
			"reports the health checks"),
		opt("dot-files", "", &h.DotFiles, "also serve files and directories whose names begin "+
			"with a dot. Without this flag only /.well-known/ of these is served"),
		opt("max-conns", "N", &h.MaxConns, "largest number of connections (default half of the "+
			"memory at 1 MiB per connection, between 256 and 65536). A new connection beyond it "+
			"closes the one that has been without a request for longest"),
		opt("min-rate", "N", &h.MinRate, "disconnect a transfer once it is 30 s behind this "+
			"rate, in bytes per second, or as long behind as 64 KiB take, if that is longer"),
		opt("debug-endpoints", "", &h.DebugEndpoints, "also serve /-/status, /-/status.json, "+
			"/-/bytes/N, /-/echo and directory listings. They disclose internals and cost much "+
			"CPU. Default: off, but on with --device sim; --debug-endpoints=false turns them off"))
	f.addTo(cmd)
	return cmd
}

// httpFlags holds the flags of the web server.
type httpFlags struct {
	httpd.Config
	demonstration bool // the debug endpoints are on by default
}

// complete checks the flags, and turns the debug endpoints on for a demonstration.
func (h *httpFlags) complete(device string, given func(flag string) bool) error {
	if given("max-conns") && h.MaxConns < 1 {
		return usageError{fmt.Errorf("--max-conns %d: want at least 1", h.MaxConns)}
	}
	if h.MinRate < 1 {
		return usageError{fmt.Errorf("--min-rate %d: want at least 1", h.MinRate)}
	}
	if device == simDevice && !given("debug-endpoints") {
		h.DebugEndpoints, h.demonstration = true, true
	}
	return nil
}

// first returns a page worth a look.
func (h *httpFlags) first() string {
	if h.DebugEndpoints {
		return "/-/status.json"
	}
	return "/-/healthz"
}

// onLinux returns a server of the same files.
func (h *httpFlags) onLinux() (kernelApp, error) {
	app, err := httpd.New(h.Config)
	if err != nil {
		return kernelApp{}, err
	}
	return kernelApp{server: app, streams: app.Serve}, nil
}

func serveHTTP(ctx context.Context, f serveFlags, h *httpFlags, out streams) (err error) {
	log := f.log.logger(out.stderr)
	var s *slice
	h.Logger = log
	h.Status = func() any { return status(s.stack, s.sim) }
	h.Checks = []httpd.Check{{Name: "device", Run: func() error { return s.stack.Unhealthy() }}}
	app, err := httpd.New(h.Config)
	if err != nil {
		return fmt.Errorf("%w (--root wants an existing directory)", err)
	}
	defer app.Close()
	if h.DebugEndpoints {
		f.debug = []string{"/-/status", "/-/status.json", "/-/bytes/N", "/-/echo",
			"directory listings"}
	}
	if s, err = openSlice(ctx, f, log); err != nil {
		return err
	}
	defer func() { err = s.closeAfter(err) }()
	var serve []func() error
	for i, at := range f.listen {
		ln, err := s.listenTCP(at)
		if err != nil {
			return listenError("HTTP", at, err)
		}
		f.listen[i] = withBoundPort(at, ln.Addr())
		serve = append(serve, func() error { return app.Serve(ln) })
	}
	f.confined.reads = []string{h.Root}
	if err := f.announce(out, s, "HTTP", "curl "+url(f.reachable(s))+h.first()); err != nil {
		return err
	}
	if h.demonstration {
		log.Warn("debug endpoints are on, because --device sim is a demonstration; " +
			"--debug-endpoints=false turns them off")
	}
	end := s.ending(ctx, &f, log, h.onLinux)
	end.unanswered = func() uint64 { return app.Counters().Unanswered }
	return serveUntilDone(ctx, app, end, serve...)
}
