package dv

import "github.com/rdma-netstack/rdma-netstack/dv/uverbs"

// format is the kernel's bit for the kind of compression, 0 for none.
func (c Compression) format() uint8 {
	switch c {
	case CompressHash:
		return uverbs.Mlx5CQEFormatHash
	case CompressSum:
		return uverbs.Mlx5CQEFormatCsum
	}
	return 0
}

// omitted is what of a frame such completions do not tell.
func (c Compression) omitted() RxFlags {
	if c == CompressHash {
		return RxSum
	}
	return RxHash
}

// compression is the format to ask for: the configured one, if the device has
// it. A striding ring has only one to choose.
func (d *Device) compression() uint8 {
	caps := d.context.Caps()
	format := d.config.Compression.format()
	if d.plan.striding && format != 0 {
		format = uverbs.Mlx5CQEFormatCsumStrIdx
	}
	return format & uint8(caps.CQECompression)
}

// omitted is what compressed completions of this device do not tell.
func (d *Device) omitted() RxFlags {
	if d.plan.striding {
		return CompressSum.omitted()
	}
	return d.config.Compression.omitted()
}
