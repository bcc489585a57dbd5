module github.com/rdma-netstack/rdma-netstack/tests/e2e/unmodified/bypass

go 1.26.3

require (
	github.com/cloudflare/tableflip v1.2.3
	github.com/panjf2000/gnet/v2 v2.9.7
	golang.org/x/net v0.62.0
)

require (
	github.com/panjf2000/ants/v2 v2.11.3 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.0 // indirect
	golang.org/x/sync v0.11.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	gopkg.in/natefinch/lumberjack.v2 v2.2.1 // indirect
)
