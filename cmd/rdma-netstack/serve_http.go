package main

import (
	"context"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
)

const serveHTTPHelp = `Usage: rdma-netstack serve http --device NAME --address CIDR [flags]

Serves files and a status page over HTTP from a slice of an RDMA port. Linux keeps the port's netdev and all frames that
are not for our MAC address.

  rdma-netstack serve http --device sim
  rdma-netstack serve http --device mlx5_0 --address 192.0.2.10/24 --gateway 192.0.2.1 --root /srv/www

  --listen ADDR:PORT  where to listen (default :80, on every address); again for more places
  --root DIR          directory of files to serve. Beside them there are always /-/status, /-/status.json, /-/healthz,
                      /-/bytes/N and /-/echo
` + serveFlagsHelp

func serveHTTPCommand() command {
	return command{"serve http", "files and a status page on a slice", serveHTTPHelp, serveHTTP}
}

func serveHTTP(ctx context.Context, args []string, out streams) (err error) {
	var f serveFlags
	fs := newFlags()
	f.define(fs)
	root := fs.String("root", "", "")
	if err := f.parse(fs, args, ":80"); err != nil {
		return err
	}
	log := f.logger(out.stderr)
	var s *slice
	app, err := httpd.New(httpd.Config{Root: *root, Logger: log, Status: func() any { return status(s.stack, s.sim) }})
	if err != nil {
		return fmt.Errorf("%w (--root wants an existing directory)", err)
	}
	defer app.Close()
	if s, err = openSlice(ctx, f, log); err != nil {
		return err
	}
	defer func() { err = s.closeAfter(err) }()
	var serve []func() error
	for _, at := range f.listen {
		ln, err := s.stack.Listen("tcp", at)
		if err != nil {
			return listening("HTTP", at, err)
		}
		serve = append(serve, func() error { return app.Serve(ln) })
	}
	f.announce(out, s, "HTTP", "curl "+url(f.reachable(s))+"/-/status.json")
	return untilToldToStop(ctx, app, s.stack.Device(), serve...)
}
