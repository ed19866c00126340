package daemon

import "fmt"

// A configuration is read strictly, filled with the defaults and checked as a whole.
func ExampleParseConfig() {
	c, err := ParseConfig([]byte(`
node: {id: node-1, region: eu-west}
link: {stripes: 4, connect_timeout: 2s}
peers:
- {node: node-2, region: us-east, address: "us.example:7441", prior_bps: 5e9}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	c = c.WithDefaults()
	fmt.Println(c.Link.Stripes, c.Link.ConnectTimeout, c.Migration.LeaseTTL, c.Validate())

	c.Link.Stripes = 100
	fmt.Println(c.Validate())
	// Output:
	// 4 2s 30s <nil>
	// config link.stripes = 100: must be 1 to 64, or 0 for as many as the path needs
}
