"""What is known of devices: provider records, description files, roofline."""
