package uverbs

import "github.com/rdma-netstack/rdma-netstack/internal/mmio"

// Ask runs one write command as it is, for tests that ask what the package itself never would.
// Answers may be nil.
func Ask(k Kernel, mem *mmio.Region, cmd uint32, in, out, uhwIn, uhwOut any) error {
	attrs, decode := write{op: &op{cmd: cmd}, in: in, out: out,
		uhwIn: uhwIn, uhwOut: uhwOut}.ioctlAttrs()
	if err := exchangeCmd(k, DriverMLX5, ObjectDevice, MethodInvokeWrite, attrs, mem); err != nil {
		return err
	}
	decode()
	return nil
}

// AskContext asks for a context, by the native method.
func AskContext(k Kernel, mem *mmio.Region, driver uint32, req, resp any) error {
	vectors, support, out := make([]byte, 4), make([]byte, 8), make([]byte, SizeOf(resp))
	err := exchangeCmd(k, driver, ObjectDevice, MethodGetContext, []attr{
		{id: AttrNumCompVectors, dir: dirOut, bytes: vectors},
		{id: AttrCoreSupport, dir: dirOut, bytes: support},
		{id: AttrUHWIn, dir: dirIn, bytes: bytesOf(req)}, {id: AttrUHWOut, dir: dirOut, bytes: out},
	}, mem)
	if err == nil {
		GetStruct(out, resp)
	}
	return err
}

// WithPages returns the options for a kernel with pages of size bytes.
func (o Options) WithPages(size int) Options {
	o.pageSize = size
	return o
}

// Bytes is the image of a uAPI struct.
func Bytes(v any) []byte { return bytesOf(v) }

// Raw is the image of a condition of a flow rule.
func (s FlowSpec) Raw() []byte { return s.raw }
