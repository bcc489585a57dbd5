module github.com/rdma-netstack/rdma-netstack/tests/bench/peers

go 1.26.3

require (
	github.com/cilium/ebpf v0.22.0
	github.com/google/pprof v0.0.0-20250903194437-c28834ac2320
	github.com/quic-go/quic-go v0.65.0
	github.com/rdma-netstack/rdma-netstack v0.0.0
	github.com/rdma-netstack/rdma-netstack/contrib/pion v0.0.0
	github.com/rdma-netstack/rdma-netstack/contrib/quic v0.0.0
	github.com/valyala/fasthttp v1.77.0
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.80.0
	google.golang.org/protobuf v1.36.11
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
)

require (
	github.com/google/btree v1.1.2 // indirect
	github.com/insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae // indirect
	github.com/josharian/native v1.1.0 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/miekg/dns v1.1.73 // indirect
	github.com/molecule-man/go-brrr v1.3.0 // indirect
	github.com/pierrec/lz4/v4 v4.1.14 // indirect
	github.com/pion/transport/v5 v5.1.1 // indirect
	github.com/quic-go/qpack v0.6.0 // indirect
	github.com/stretchr/objx v0.5.3 // indirect
	github.com/u-root/uio v0.0.0-20230220225925-ffce2a382923 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/exp v0.0.0-20250711185948-6ae5c78190dc // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.15.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260401024825-9d38bb4040a9 // indirect
)

replace github.com/rdma-netstack/rdma-netstack => ../../..

replace github.com/rdma-netstack/rdma-netstack/contrib/quic => ../../../contrib/quic

replace github.com/rdma-netstack/rdma-netstack/contrib/pion => ../../../contrib/pion
