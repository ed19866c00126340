// Package kvfile is a file of recorded KV pages that says itself what they are: model, element, shape, and the layer of each page.
//
// # Format
//
// Numbers are little-endian, checksums CRC32C.
//
//	offset  size  field
//	0       8     magic, "KVPAGES\n"
//	8       4     version, 1
//	12      4     length H of the header, 2 to 1,048,576
//	16      H     header: [Header] as JSON, in the order of its fields, without white space
//	16+H    4     checksum of all before
//	        …     pages in order, each: 4 bytes checksum, then the page
//
// All pages have one length, which the header states. The file ends with the last of them. A header has one encoding: what
// decodes and would be encoded otherwise is refused, unknown fields included.
//
// # Usage
//
//	f, err := kvfile.Create("pages.kv", h, false)
//	defer f.Abort()
//	err = f.WritePage(page) // for each of h.PageLayers
//	err = f.Commit()
//
//	r, err := kvfile.NewReader(bufio.NewReader(in))
//	err = r.ReadPage(page) // len(page) is r.Header().PageBytes; io.EOF after the last
//
// # Concurrency
//
// A [Writer], a [Reader] and a [File] are for one goroutine at a time.
//
// # Limitations
//
// Pages of one file have one layout. Names of blocks and tokens are not in it, but the values are those of somebody's text, and who
// has the model may find out which: a [File] is created for its owner alone.
package kvfile
