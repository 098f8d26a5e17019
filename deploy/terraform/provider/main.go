// A provider for OpenTofu and Terraform that manages the governance of a Monodon server over HTTP.
package main

import (
	"context"
	"log"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
)

const version = "0.1.0"

func main() {
	options := providerserver.ServeOpts{Address: "terraform.local/monodon/monodon"}
	if err := providerserver.Serve(context.Background(), newProvider, options); err != nil {
		log.Fatal(err)
	}
}
